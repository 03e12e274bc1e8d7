"""`show --samples` of a run that is too large to be held in memory."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from evalution.results import MetricResult, RunResult, SampleResult, SuiteResult, to_json
from evalution.samples import to_line

ROWS = 1_500
TEXT = "word " * 2_000


def sample(row: int, prompt: str) -> SampleResult:
    error = "died" if row % 500 == 7 else None
    return SampleResult(
        "sums", row, prompt=prompt, metrics={"acc": float(row % 300 != 8)}, error=error
    )


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A finished run of 15 MB of samples, in the folder `large` of the current one."""
    folder = tmp_path / "large"
    folder.mkdir()
    score = MetricResult(0.5, 0.1, True, ROWS)
    suite = SuiteResult("sums", "", {}, {"acc": score}, ROWS, 3, None, ROWS, 1.0)
    run = RunResult({"path": "m"}, {"name": "E"}, {}, {}, status="done", suites=[suite])
    (folder / "results.json").write_text(to_json(run.to_dict()), encoding="utf-8")
    with (folder / "samples.jsonl").open("wb") as lines:
        for row in range(ROWS):
            lines.write(to_line(sample(row, TEXT)))
    return folder


@pytest.mark.parametrize(
    ("choice", "rows", "counted"),
    [
        ([], [0, 1], "2 of 1500 samples; --limit shows more"),
        (["--failed"], [7, 507], "2 of 3 samples; --limit shows more"),
        (["--wrong"], [8, 308], "2 of 5 samples; --limit shows more"),
    ],
)
def test_no_more_than_what_is_shown_is_held(
    large: Path, command_line: Any, choice: list[str], rows: list[int], counted: str
) -> None:
    arguments = ["show", large.name, "--samples", "sums", "--limit", "2", *choice]
    tracemalloc.start()
    try:
        shown = command_line(*arguments)
        as_json = command_line(*arguments, "--json")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    lines = shown.stdout.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("sums, ")] == [
        f"sums, row {row}" for row in rows
    ]
    assert lines[-1] == counted
    assert as_json.stdout == to_json([sample(row, TEXT).to_dict() for row in rows], indent=2) + "\n"
    assert peak < ROWS * len(TEXT) / 2


def test_rows_that_a_metric_where_lower_is_better_calls_wrong(
    large: Path, command_line: Any
) -> None:
    results = (large / "results.json").read_text("utf-8")
    text = results.replace('"higher_is_better":true', '"higher_is_better":false')
    assert text != results
    (large / "results.json").write_text(text, "utf-8")
    rows = [SampleResult("sums", row, metrics={"acc": float(row == 1)}) for row in range(3)]
    (large / "samples.jsonl").write_bytes(b"".join(map(to_line, rows)))
    shown = command_line("show", "large", "--samples", "sums", "--wrong").stdout
    assert shown.splitlines()[0] == "sums, row 1: acc 1"
    assert shown.splitlines()[-1] == "1 of 1 samples"


def test_least_verdict_of_a_scale_is_neither_right_nor_wrong(
    large: Path, command_line: Any
) -> None:
    results = json.loads((large / "results.json").read_text("utf-8"))
    (metric,) = results["suites"][0]["metrics"].values()
    metric["row_range"] = [1.0, 5.0]
    (large / "results.json").write_text(json.dumps(results), "utf-8")
    rows = [SampleResult("sums", row, metrics={"acc": 1.0}) for row in range(3)]
    (large / "samples.jsonl").write_bytes(b"".join(map(to_line, rows)))
    refused = command_line("show", "large", "--samples", "sums", "--wrong")
    assert "calls no sample right or wrong" in refused.stderr


def test_the_whole_list_as_json_is_one_document(large: Path, command_line: Any) -> None:
    samples = [sample(row, 'a\n"b"') for row in range(12)]
    (large / "samples.jsonl").write_bytes(b"".join(map(to_line, samples)))
    every = command_line("show", "large", "--samples", "sums", "--json").stdout
    assert every == to_json([found.to_dict() for found in samples], indent=2) + "\n"
    (large / "samples.jsonl").write_bytes(b"")
    assert json.loads(command_line("show", "large", "--samples", "sums", "--json").stdout) == []


def test_rows_of_an_impossible_text_are_shown_and_none_is_wrong(
    large: Path, command_line: Any
) -> None:
    impossible = SampleResult("sums", 0, prompt="a", metrics={"ppl": math.inf})
    (large / "samples.jsonl").write_bytes(to_line(impossible))
    shown = command_line("show", "large", "--samples", "sums")
    assert "sums, row 0: ppl inf\n" in shown.stdout
    refused = command_line("show", "large", "--samples", "sums", "--wrong")
    assert "calls no sample right or wrong" in refused.stderr
