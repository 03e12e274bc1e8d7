"""Which samples a page holds, and how."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.report import samples as payload_module
from evalution.report.differences import differences_to_first
from evalution.report.rendering import embedded_json, label_runs
from evalution.report.samples import (
    SamplePayload,
    SuiteRows,
    Verdict,
    binary_metrics,
    is_flipped,
    sample_payload,
    spread,
    verdict,
)
from evalution.report.scores import suite_scores
from evalution.results import RunResult, SampleResult
from evalution.runs.reader import RunSamples
from evalution.samples import SampleColumns, to_line
from evalution_core import ConfigurationError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def payload(*runs: Any, most: int = 100) -> SamplePayload | None:
    letters = ["A", "B", "C"][: len(runs)]
    samples = [RunSamples(run) for run in runs]
    return sample_payload(suite_scores(runs, letters), samples, letters, most)


def rows_of(found: SamplePayload | None, suite: int = 0) -> list[Any]:
    assert found is not None
    return json.loads(found.json)["suites"][suite]["rows"]


@given(JSON)
def test_embedded_json_means_the_same_and_holds_no_markup(value: Any) -> None:
    text = embedded_json(value)

    assert json.loads(text) == value
    assert not set("<>&\u2028\u2029") & set(text)
    text.encode()


@given(st.integers(0, 300), st.integers(0, 300))
def test_any_beginning_of_a_spread_lies_evenly(count: int, taken: int) -> None:
    items = list(range(count))
    found = list(spread(items))
    begun = sorted(found[:taken])

    assert sorted(found) == items
    gaps = [after - before for before, after in zip([-1, *begun], [*begun, count], strict=True)]
    assert max(gaps) <= 2 * (count / max(len(begun), 1)) + 2


def test_failed_and_flipped_rows_come_first(make_sample: Any) -> None:
    left = [make_sample(index) for index in range(10)]
    right = [make_sample(index) for index in range(10)]
    left[8] = make_sample(8, None, error="no")
    right[6] = make_sample(6, 0.0)
    rows = SuiteRows([SampleColumns(left), SampleColumns(right)], {"acc": True})

    assert rows.failed == [8]
    assert rows.flipped == [6]
    assert list(rows.in_order_of_interest())[:2] == [8, 6]
    assert sorted(rows.in_order_of_interest()) == list(range(10))


def test_only_so_many_rows_are_kept_and_the_page_knows(
    make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    samples = [make_sample(index) for index in range(20)]
    samples[13] = make_sample(13, None, error="no")
    found = payload(make_run(make_suite("sums", samples)), most=5)

    rows = [row[0] for row in rows_of(found)]
    assert len(rows) == 5
    assert rows == sorted(rows)
    assert 13 in rows
    assert found is not None
    assert [(cut.suite, cut.embedded, cut.total) for cut in found.cut] == [("sums", 5, 20)]
    assert (found.embedded, found.total) == (5, 20)


def test_the_budget_is_kept_and_shared_by_the_suites(
    make_run: Any, make_suite: Any, make_sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_module, "BUDGET_BYTES", 20_000)
    suites = [
        make_suite(name, [make_sample(index, prompt="word " * 200) for index in range(50)])
        for name in ("one", "other")
    ]
    found = payload(make_run(*suites))

    assert found is not None
    assert len(found.json) < 21_000
    held = [count.embedded for count in found.counts]
    assert min(held) > 5
    assert max(held) - min(held) <= 2


def test_a_long_text_loses_its_middle(make_run: Any, make_suite: Any, make_sample: Any) -> None:
    prompt = "first " + "x" * 50_000 + " last"
    found = payload(make_run(make_suite("sums", [make_sample(0, prompt=prompt)])))

    [[_, shown, *_]] = rows_of(found)
    assert shown.startswith("first ")
    assert shown.endswith(" last")
    assert "38,011 characters are left out of this page" in shown
    assert len(shown) < 12_200


def test_what_runs_share_is_there_once(make_run: Any, make_suite: Any, make_sample: Any) -> None:
    prompts = ["the same", "the same", "another"]
    runs = [make_run(make_suite("sums", [make_sample(0, prompt=text)])) for text in prompts]

    [[index, prompt, target, cells]] = rows_of(payload(*runs))
    assert (index, prompt, target) == (0, "the same", "target 0")
    assert [cell.get("q") for cell in cells] == [None, None, "another"]
    assert cells[0] == {"m": [1.0], "p": "prediction"}


def test_a_run_without_a_row_has_no_cell(make_run: Any, make_suite: Any, make_sample: Any) -> None:
    runs = [make_run(make_suite("sums", [make_sample(0)])), make_run()]

    [[*_, cells]] = rows_of(payload(*runs))
    assert cells[1] is None


def test_no_samples_no_payload(make_run: Any, make_suite: Any) -> None:
    assert payload(make_run(make_suite("sums"))) is None


def test_samples_of_a_file_are_those_of_its_suites(
    make_run: Any, make_suite: Any, make_sample: Any, tmp_path: Path
) -> None:
    file = tmp_path / "samples.jsonl"
    lines = [make_sample(index, suite=name) for index in (1, 0) for name in ("one", "other")]
    file.write_bytes(b"".join(map(to_line, lines)) + b'{"suite": "one", "ind')
    suites = [make_suite(name, lines[:1], samples_file=file) for name in ("one", "other", "none")]
    found = payload(make_run(*suites))

    for suite, rows in enumerate(([0, 1], [0, 1], [])):
        assert [row[0] for row in rows_of(found, suite)] == rows


@pytest.mark.parametrize("line", ["no JSON", "[]", '{"suite": "one"}', '{"other": 1}', "\udcff"])
def test_a_damaged_file_is_told(
    line: str, make_run: Any, make_suite: Any, write_page: Any, tmp_path: Path
) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_bytes(line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(ConfigurationError, match=r"samples.jsonl is damaged or was not written"):
        write_page(make_run(make_suite("one", samples_file=file)))


def test_a_missing_file_is_told(
    make_run: Any, make_suite: Any, write_page: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="can't be read: No such file"):
        write_page(make_run(make_suite("one", samples_file=tmp_path / "samples.jsonl")))


def test_the_texts_of_all_rows_are_never_held(
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
        [found] = differences_to_first([RunSamples(run) for run in runs], label_runs(runs))
        held = payload(*runs, most=4)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [row.metric.winner for row in found.rows] == ["tie"]
    assert {2, 3} < {row[0] for row in rows_of(held)}
    assert peak < rows * len(text) / 2  # of the two files, which hold four times as much


@pytest.mark.parametrize(
    ("metrics", "error", "expected"),
    [
        ({"acc": 1.0}, None, Verdict.RIGHT),
        ({"acc": 0.0}, None, Verdict.WRONG),
        ({"acc": 1.0}, "no", Verdict.FAILED),
        ({}, None, Verdict.UNJUDGED),
        ({"ppl": 1.0}, None, Verdict.UNJUDGED),
    ],
)
def test_a_verdict(metrics: dict[str, float], error: str | None, expected: Verdict) -> None:
    columns = SampleColumns([SampleResult("sums", 0, metrics=metrics, error=error)])

    assert verdict(columns, 0, "acc", True) is expected


def test_verdicts_go_by_direction_and_presence() -> None:
    columns = SampleColumns(
        [
            SampleResult("sums", 0, metrics={"errors": 1.0, "f1": 0.5}),
            SampleResult("sums", 1, metrics={"loss": math.inf}),
        ]
    )

    assert verdict(columns, 0, "errors", False) is Verdict.WRONG
    assert verdict(columns, 1, "errors", False) is Verdict.UNJUDGED
    assert binary_metrics([columns]) == {"errors"}
    assert is_flipped([Verdict.RIGHT, Verdict.UNJUDGED, Verdict.WRONG])
    assert not is_flipped([Verdict.RIGHT, Verdict.FAILED])
