"""GuideLLM's report as figures and as a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from evalution_core import ConfigurationError
from evalution_guidellm.bench.result import (
    SUMMARY,
    BenchResult,
    Spread,
    format_number,
    make_table,
    open_folder,
    read_levels,
)

Report = Callable[..., dict[str, Any]]
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def make_result(report: dict[str, Any]) -> BenchResult:
    subject = {"engine": {"name": "Reference"}}
    return BenchResult("tiny on Reference", NOW, subject, {"seed": 1}, read_levels(report))


def test_counts_rates_and_times_equal_the_report_of_guidellm(report: Report) -> None:
    first, second = read_levels(report(2, errored=3))
    assert (first.name, second.name) == ("1 at once", "2 at once")
    assert (first.successful, first.errored, first.incomplete) == (10, 3, 1)
    assert (first.prompt_tokens, first.output_tokens) == (160, 80)
    assert (first.requests_per_second, first.output_tokens_per_second) == (5, 40)
    assert first.first_token_ms == Spread(55, 50, 90, 100, 100)
    assert first.latency_ms is not None
    assert first.latency_ms.p50 == pytest.approx(100), "GuideLLM has seconds"
    assert first.first_error == "ContextLengthError('too long')"
    assert second.warnings == ["late. Slow data."]


def test_times_of_tokens_are_none_without_a_stream(report: Report) -> None:
    (level,) = read_levels(report(streams=False))
    assert level.first_token_ms is None
    assert level.inter_token_ms is None
    assert level.latency_ms is not None


def test_level_without_an_answer_is_a_complaint(report: Report) -> None:
    made = report()
    made["benchmarks"][0]["metrics"]["request_totals"] |= {"successful": 0, "incomplete": 8}
    assert make_result(report()).complaints == []
    (complaint,) = make_result(made).complaints
    assert complaint == "1 at once: no request was answered; give it more --seconds"


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        ({"type_": "synchronous"}, "one at a time"),
        ({"type_": "constant", "rate": 2.5}, "2.5 a second"),
        ({"type_": "throughput"}, "throughput"),
    ],
)
def test_level_is_named_by_its_load(report: Report, strategy: dict[str, Any], name: str) -> None:
    made = report()
    made["benchmarks"][0]["config"]["strategy"] = strategy
    assert read_levels(made)[0].name == name


def test_table_has_a_row_for_each_level(report: Report) -> None:
    console = Console(width=140, record=True)
    with console.capture() as captured:
        console.print(make_table(make_result(report(2, errored=3)), width=140))
    text = captured.get()
    row = next(line for line in text.splitlines() if "1 at once" in line)
    assert row.split() == ["1", "at", "once", "10", "3", "5.00", "40.0", "50.0", "/", "100", "/", "100", "5.00", "/", "10.0", "/", "10.0", "100", "/", "200", "/", "200"]  # fmt: skip # noqa: E501
    with console.capture() as captured:
        console.print(make_table(make_result(report(streams=False)), width=140))
    assert captured.get().split().count("–") == 2


def test_narrow_terminal_shows_medians(report: Report) -> None:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(make_table(make_result(report(2)), width=80))
    text = captured.get()
    assert "latency ms" in text
    row = next(line for line in text.splitlines() if "1 at once" in line)
    assert row.split() == ["1", "at", "once", "10", "0", "5.00", "40.0", "50.0", "5.00", "100"]


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.50"), (9.999, "10.00"), (12.34, "12.3"), (1234.5, "1,234")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert format_number(value) == text


def test_results_are_json_with_each_levels_figures(report: Report) -> None:
    result = make_result(report(2, errored=1))
    assert result.complaints == [
        f"{count} at once: 1 failed, the first with ContextLengthError('too long')"
        for count in (1, 2)
    ]
    read = json.loads(json.dumps(result.to_dict()))
    assert read["levels"][1]["first_token_ms"]["p50"] == 100
    assert read["started"] == "2026-01-02T03:04:05+00:00"


def test_folder_is_named_by_time_and_subject(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_folder(None, "a/b on C", NOW) as path:
        assert str(path) == "runs/20260102-030405-bench-a-b-on-C"
        (path / SUMMARY).touch()
    with (
        pytest.raises(ConfigurationError, match="holds a benchmark; name another --output"),
        open_folder(path, "x", NOW),
    ):
        pass


def test_folder_that_stays_empty_is_removed(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="nothing"), open_folder(tmp_path / "b", "x", NOW):
        raise ValueError("nothing")
    assert not (tmp_path / "b").exists()
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigurationError, match="can't be written to: File exists; name another"),
        open_folder(tmp_path / "file", "x", NOW),
    ):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that root can't write to")
def test_folder_that_takes_no_file_is_refused_before_work() -> None:
    with (
        pytest.raises(ConfigurationError, match="/proc can't be written to"),
        open_folder(Path("/proc"), "x", NOW),
    ):
        pass
