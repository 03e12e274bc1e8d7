"""Which samples a page holds, and how."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evalution.comparison.significance import is_binary
from evalution.report import samples as payload_module
from evalution.report.documents import make_documents
from evalution.report.samples import order_rows
from evalution.results import RunResult, to_json
from evalution.sample_columns import collect_columns
from evalution.samples import to_line
from evalution_core import ConfigurationError


@dataclass
class Embedded:
    """Rows of a report by suite, and how many rows its runs have."""

    rows: Any
    counts: dict[str, dict[str, int]]


def embed(*runs: Any, most: int = 100) -> Embedded:
    found = make_documents(runs, most)
    return Embedded(found["samples"], found["counts"])


def test_failed_and_flipped_rows_come_first(make_sample: Any) -> None:
    left = [make_sample(index) for index in range(10)]
    right = [make_sample(index) for index in range(1, 11)]
    left[8] = make_sample(8, None, error="no")
    order = order_rows([collect_columns(left), collect_columns(right)], {6})

    assert order[:2] == [8, 6]
    assert sorted(order) == list(range(11))
    assert order[2:] != sorted(order[2:])


def test_rows_beyond_the_limit_are_left_out_and_counted(
    make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    samples = [make_sample(index) for index in range(20)]
    samples[13] = make_sample(13, None, error="no")
    found = embed(make_run(make_suite("sums", samples)), most=5)

    rows = [row["index"] for row in found.rows["sums"]]
    assert len(rows) == 5
    assert rows == sorted(rows)
    assert 13 in rows
    assert found.counts == {"sums": {"A": 20}}


def test_rows_are_counted_of_each_run(make_run: Any, make_suite: Any, make_sample: Any) -> None:
    runs = [make_run(make_suite("sums", [*map(make_sample, range(size))])) for size in (5, 60)]
    assert embed(*runs).counts == {"sums": {"A": 5, "B": 60}}


def test_budget_is_kept_and_shared_by_the_suites(
    make_run: Any, make_suite: Any, make_sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_module, "BUDGET_BYTES", 20_000)
    suites = [
        make_suite(name, [make_sample(index, prompt="word " * 200) for index in range(50)])
        for name in ("one", "other")
    ]
    found = embed(make_run(*suites))

    assert len(to_json(found.rows)) < 21_000
    held = [len(rows) for rows in found.rows.values()]
    assert min(held) > 5
    assert max(held) - min(held) <= 2


def test_middle_of_a_long_text_is_left_out(
    make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    prompt = "first " + "x" * 50_000 + " last"
    found = embed(make_run(make_suite("sums", [make_sample(0, prompt=prompt)])))

    shown = found.rows["sums"][0]["shared"]["prompt"]
    assert shown.startswith("first ")
    assert shown.endswith(" last")
    assert "38,011 characters are left out of this page" in shown
    assert len(shown) < 12_200


def test_shared_prompt_is_embedded_once(make_run: Any, make_suite: Any, make_sample: Any) -> None:
    prompts = ["the same", "the same", "another"]
    runs = [make_run(make_suite("sums", [make_sample(0, prompt=text)])) for text in prompts]

    [row] = embed(*runs).rows["sums"]
    assert row["shared"] == {"prompt": "the same", "messages": None, "target": "target 0"}
    assert [found.get("prompt") for found in row["runs"].values()] == [None, None, "another"]
    assert row["runs"]["A"]["prediction"] == "prediction"


def test_run_without_a_row_is_absent_from_it(
    make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    runs = [make_run(make_suite("sums", [make_sample(0)])), make_run()]

    [row] = embed(*runs).rows["sums"]
    assert list(row["runs"]) == ["A"]


def test_samples_of_a_file_are_those_of_its_suites(
    make_run: Any, make_suite: Any, make_sample: Any, tmp_path: Path
) -> None:
    file = tmp_path / "samples.jsonl"
    lines = [make_sample(index, suite=name) for index in (1, 0) for name in ("one", "other")]
    file.write_bytes(b"".join(map(to_line, lines)) + b'{"suite": "one", "ind')
    suites = [make_suite(name, lines[:1], samples_file=file) for name in ("one", "other", "none")]
    found = embed(make_run(*suites)).rows

    for suite, rows in (("one", [0, 1]), ("other", [0, 1]), ("none", [])):
        assert [row["index"] for row in found[suite]] == rows


@pytest.mark.parametrize("line", ["no JSON", "[]", '{"suite": "one"}', '{"other": 1}', "\udcff"])
def test_damaged_file_is_reported(
    line: str, make_run: Any, make_suite: Any, write_page: Any, tmp_path: Path
) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_bytes(line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(ConfigurationError, match=r"samples.jsonl is damaged or was not written"):
        write_page(make_run(make_suite("one", samples_file=file)))


def test_missing_file_is_reported(
    make_run: Any, make_suite: Any, write_page: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="can't be read: No such file"):
        write_page(make_run(make_suite("one", samples_file=tmp_path / "samples.jsonl")))


def test_texts_of_all_rows_are_never_in_memory(
    make_run: Any, make_suite: Any, make_sample: Any, tmp_path: Path
) -> None:
    rows, text = 1_500, "word " * 2_000

    def written(name: str, wrong: int) -> RunResult:
        file = tmp_path / name
        with file.open("wb") as lines:
            for index in range(rows):
                sample = make_sample(index, float(index != wrong), prompt=text)
                lines.write(to_line(sample))
        some = [make_sample(0, 0.0), make_sample(1, 1.0)]
        return make_run(make_suite("sums", some, samples_file=file, n=rows))

    runs = [written("one.jsonl", 2), written("other.jsonl", 3)]
    tracemalloc.start()
    try:
        held = embed(*runs, most=4)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {2, 3} < {row["index"] for row in held.rows["sums"]}
    assert peak < rows * len(text) / 2  # of the two files, which hold four times as much


def test_metric_is_binary_if_every_value_is_right_or_wrong() -> None:
    assert is_binary([0.0, 1.0, math.nan])
    assert not is_binary([0.0, 0.5])
    assert not is_binary([math.inf])
