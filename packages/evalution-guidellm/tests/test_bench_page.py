"""The page of a benchmark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from evalution_guidellm.bench.page import write_page
from evalution_guidellm.bench.result import BenchResult, level_results

pytest.importorskip("plotly", reason="plotly isn't installed; the extra `report` has it")
pytest.importorskip("jinja2", reason="jinja2 isn't installed; the extra `report` has it")
pytestmark = pytest.mark.wide


def written(report: dict[str, Any], file: Path, title: str = "tiny on Reference") -> str:
    subject = {"engine": {"name": "Reference", "options": {"batch_size": 4}}}
    now = datetime(2026, 1, 2, tzinfo=UTC)
    write_page(BenchResult(title, now, subject, {"seed": 1}, level_results(report)), file)
    return file.read_text()


def figures_of(page: str) -> dict[str, Any]:
    found = re.search(r'id="figures-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_it_shows_levels_times_and_conditions(
    report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    page = written(report(2, errored=3), tmp_path / "page.html")
    text = " ".join(re.sub(r"<script.*?</script>|<[^>]*>", " ", page, flags=re.DOTALL).split())
    assert "tiny on Reference under load" in text
    assert "1 at once: 3 failed, the first with ContextLengthError(&#39;too long&#39;)" in text
    assert "2 at once: late. Slow data." in text
    assert "1 at once Time to first token 55.0 50.0 90.0 100 100" in text
    assert "engine.options.batch_size 4" in text
    assert "evalution-guidellm" in text


def test_its_curves_end_at_all_requests(
    report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    figures = figures_of(written(report(2), tmp_path / "page.html"))
    assert set(figures) == {"throughput", "first_token_ms", "inter_token_ms", "latency_ms"}
    for name in ("first_token_ms", "inter_token_ms", "latency_ms"):
        for trace in figures[name]["data"]:
            assert trace["y"] == [10 * step for step in range(1, 11)]
            assert trace["x"] == sorted(trace["x"])


def test_what_was_not_told_has_no_curve(
    report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    page = written(report(1, streams=False), tmp_path / "page.html")
    assert set(figures_of(page)) == {"latency_ms"}
    assert page.count("not told") == 2


def test_a_long_curve_is_thinned_and_keeps_its_largest(
    report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    made = report()
    requests = made["benchmarks"][0]["requests"]
    requests["successful"] = [
        {**requests["successful"][0], "request_latency": order / 1000} for order in range(1, 1001)
    ]
    (trace,) = figures_of(written(made, tmp_path / "page.html"))["latency_ms"]["data"]
    assert len(trace["x"]) == 200
    assert trace["x"][-1] == 1000


def test_names_can_not_break_the_page(
    report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    page = written(report(), tmp_path / "page.html", "</script><script>alert(1)</script>")
    assert "<script>alert(1)" not in page
