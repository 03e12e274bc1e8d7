"""Which samples a page holds, and how."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from evalution.comparison.comparison import compare_samples, find_flipped_rows, is_binary
from evalution.report import samples as payload_module
from evalution.report.differences import differences_to_first
from evalution.report.rendering import label_runs
from evalution.report.samples import SamplePayload, make_sample_payload, order_rows
from evalution.report.scores import collect_suite_scores
from evalution.results import RunResult, to_json
from evalution.runs.reader import RunSamples
from evalution.sample_columns import collect_columns
from evalution.samples import to_line
from evalution_core import ConfigurationError


def payload(*runs: Any, most: int = 100) -> SamplePayload | None:
    letters = ["A", "B", "C"][: len(runs)]
    samples = [RunSamples(run) for run in runs]
    compared = [compare_samples(samples[0], other) for other in samples[1:]]
    flipped = find_flipped_rows(compared)
    return make_sample_payload(collect_suite_scores(runs, letters), samples, letters, most, flipped)


def rows_of(found: SamplePayload | None, suite: int = 0) -> list[Any]:
    assert found is not None
    return found.data["suites"][suite]["rows"]


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
    found = payload(make_run(make_suite("sums", samples)), most=5)

    rows = [row[0] for row in rows_of(found)]
    assert len(rows) == 5
    assert rows == sorted(rows)
    assert 13 in rows
    assert found is not None
    assert [(cut.suite, cut.embedded, cut.total) for cut in found.cut] == [("sums", 5, 20)]
    assert (found.embedded, found.total) == (5, 20)


def test_budget_is_kept_and_shared_by_the_suites(
    make_run: Any, make_suite: Any, make_sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_module, "BUDGET_BYTES", 20_000)
    suites = [
        make_suite(name, [make_sample(index, prompt="word " * 200) for index in range(50)])
        for name in ("one", "other")
    ]
    found = payload(make_run(*suites))

    assert found is not None
    assert len(to_json(found.data)) < 21_000
    held = [count.embedded for count in found.counts]
    assert min(held) > 5
    assert max(held) - min(held) <= 2


def test_middle_of_a_long_text_is_left_out(
    make_run: Any, make_suite: Any, make_sample: Any
) -> None:
    prompt = "first " + "x" * 50_000 + " last"
    found = payload(make_run(make_suite("sums", [make_sample(0, prompt=prompt)])))

    [[_, shown, *_]] = rows_of(found)
    assert shown.startswith("first ")
    assert shown.endswith(" last")
    assert "38,011 characters are left out of this page" in shown
    assert len(shown) < 12_200


def test_shared_prompt_is_embedded_once(make_run: Any, make_suite: Any, make_sample: Any) -> None:
    prompts = ["the same", "the same", "another"]
    runs = [make_run(make_suite("sums", [make_sample(0, prompt=text)])) for text in prompts]

    [[index, prompt, target, cells]] = rows_of(payload(*runs))
    assert (index, prompt, target) == (0, "the same", "target 0")
    assert [cell.get("q") for cell in cells] == [None, None, "another"]
    assert cells[0] == {"m": [1.0], "p": "prediction"}


def test_run_without_a_row_has_no_cell(make_run: Any, make_suite: Any, make_sample: Any) -> None:
    runs = [make_run(make_suite("sums", [make_sample(0)])), make_run()]

    [[*_, cells]] = rows_of(payload(*runs))
    assert cells[1] is None


def test_runs_without_samples_have_no_payload(make_run: Any, make_suite: Any) -> None:
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
        [found] = differences_to_first([compare_samples(*map(RunSamples, runs))], label_runs(runs))
        held = payload(*runs, most=4)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [row.metric.winner for row in found.rows] == ["tie"]
    assert {2, 3} < {row[0] for row in rows_of(held)}
    assert peak < rows * len(text) / 2  # of the two files, which hold four times as much


def test_metric_is_binary_if_every_value_is_right_or_wrong() -> None:
    assert is_binary([0.0, 1.0, math.nan])
    assert not is_binary([0.0, 0.5])
    assert not is_binary([math.inf])
