"""Rows that belong together, from a spec to the gate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import evalution
from evalution import Generation, Perplexity
from evalution.cli.program import app
from evalution.comparison import compare
from evalution.results import SampleResult
from evalution.runs.reader import read_run
from evalution.runs.run_identity import declare_suite
from evalution.sample_columns import SampleIndex, collect_columns
from evalution.samples import parse_sample, to_line
from evalution.samples_file import SamplesFile, SamplesReader
from evalution.suites.discovery import load_suite
from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    InvalidRequestError,
    RequestFailure,
)
from evalution_enginekit.mock import Mock

SPEC = """
engine: Reference
model: builtin:tiny
tests:
  - type: generation
    name: sums
    data: rows.jsonl
    prompt: "Question: {question}\\nAnswer:"
    target: answer
    metrics: [number]
    stop: [STOP]
    group: text
"""


def make_rows(count: int = 24) -> list[dict[str, Any]]:
    return [
        {"question": f"What is {row % 8 + 1} + 3?", "answer": str(row % 8 + 4), "text": row // 4}
        for row in range(count)
    ]


def make_sums(rows: Sequence[dict[str, Any]] | None = None, **options: Any) -> Generation:
    given = make_rows() if rows is None else rows
    return Generation(data=given, prompt="question", target="answer", name="sums", **options)


def call(*words: str, code: int = 0) -> str:
    found = CliRunner().invoke(app, [*words])
    assert found.exit_code == code, found.output
    return found.output


def test_group_of_a_spec_reaches_results_comparison_and_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in make_rows()))
    for name, stop in (("all", "#"), ("some", "9")):
        Path("spec.yaml").write_text(SPEC.replace("STOP", f'"{stop}"'))
        shown = call("run", "spec.yaml", "--output", name)
        assert "24 in 6 groups" in shown
    suite = json.loads(Path("some/results.json").read_text())["suites"][0]
    assert suite["options"]["group"] == "text"
    assert suite["metrics"]["number"]["groups"] == 6
    lines = Path("some/samples.jsonl").read_text().splitlines()
    assert [json.loads(line)["group"] for line in lines] == [str(row // 4) for row in range(24)]
    assert "clustered t" in call("compare", "all", "some")
    found = json.loads(call("compare", "all", "some", "--json"))["suites"][0]
    assert found["grouped_by"] == "both"
    assert found["metrics"]["number"]["test"]["groups"] == 6
    gate = json.loads(call("gate", "all", "some", "--loss", "0.9", "--json"))
    low, high = found["metrics"]["number"]["test"]["interval"]
    assert gate["checks"][0]["interval"][0] < -high < -low < gate["checks"][0]["interval"][1]


def test_run_that_died_goes_on_with_the_same_groups(
    scripted: Any, scripted_session: Any, tmp_path: Path
) -> None:
    def die(events: Any) -> Any:
        for count, event in enumerate(events):
            if count == 13:
                raise RuntimeError("device lost")
            yield event

    def make_engine(*script: Any) -> Any:
        return scripted(scripted_session(*script))

    def run(engine: Any, folder: str) -> Any:
        return evalution.run(
            engine=engine, model="m", tests=[make_sums(group="text")], output=tmp_path / folder
        )

    run(make_engine(), "whole")
    with pytest.raises(EngineRuntimeError, match="device lost"):
        run(make_engine(die), "run")
    result = run(make_engine(), "run")
    assert result["sums"].cached == 13
    whole = read_run(tmp_path / "whole")
    assert result["sums"].metrics == whole["sums"].metrics
    assert result["sums"].metrics["exact_match"].groups == 6
    samples = [(tmp_path / name / "samples.jsonl").read_bytes() for name in ("run", "whole")]
    assert samples[0] == samples[1]


def test_failed_row_counts_in_its_group(scripted: Any, scripted_session: Any) -> None:
    def fail(events: Any) -> Any:
        for key, answer in events:
            is_bad = key[0] in range(4)
            yield key, RequestFailure(InvalidRequestError("no")) if is_bad else answer

    engine = scripted(scripted_session(fail))
    found = evalution.run(engine=engine, model="m", tests=[make_sums(group="text")])["sums"]
    assert (found.failed, found.metrics["exact_match"].groups) == (4, 6)
    assert {sample.group for sample in found.samples} == set("012345")


def test_suite_without_a_group_declares_and_records_what_it_always_did() -> None:
    plain = make_sums()
    assert "group" not in plain.to_dict()
    assert "group" not in declare_suite(plain)
    assert declare_suite(make_sums(group="text")) == {**declare_suite(plain), "group": "text"}
    result = evalution.run(engine=Mock(), model="m", tests=[plain])
    assert "group" not in result["sums"].samples[0].to_dict()
    assert "groups" not in result["sums"].metrics["exact_match"].to_dict()


def test_group_changes_no_score_and_no_request() -> None:
    runs = [
        evalution.run(engine=Mock(), model="m", tests=[make_sums(group=group)])
        for group in (None, "text")
    ]
    one, other = (run["sums"] for run in runs)
    assert one.metrics["exact_match"].value == other.metrics["exact_match"].value
    for before, after in zip(one.samples, other.samples, strict=True):
        assert {**after.to_dict(), "group": None} == {**before.to_dict(), "group": None}
    # The option differs, and the rows are the same all the same.
    assert compare(*runs)["sums"].rows.paired == 24


@pytest.mark.parametrize(
    "value", [None, ["a"], {"a": 1}, True, float("nan"), float("inf"), "", "  "]
)
def test_row_whose_group_is_no_name_is_refused(value: Any) -> None:
    rows = [*make_rows(2), {"question": "q", "answer": "a", "text": value}]
    with pytest.raises(ConfigurationError) as caught:
        make_sums(rows, group="text").check_samples()
    message = str(caught.value)
    assert f"row 2 of data: the option group names column 'text', which holds {value!r}" in message
    assert "fill it in for every row, name another column, or leave the option out" in message


def test_row_without_the_column_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_sums(group="txt").check_samples()
    assert "there is no column 'txt'; did you mean 'text'?" in str(caught.value)


@pytest.mark.parametrize("value", ["", 3, ["text"]])
def test_group_that_names_no_column_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="group"):
        make_sums(group=value)


def test_corpus_score_has_no_groups() -> None:
    with pytest.raises(ConfigurationError, match="sacreBLEU's bootstrap draws single rows"):
        load_suite("wmt16-de-en").from_options({"group": "text"})


def test_long_text_is_a_group_by_its_beginning_and_its_hash() -> None:
    passages = ["a" * 300, "a" * 299 + "b", "a" * 300]
    rows = [{"question": "q", "answer": "a", "text": passage} for passage in passages]
    one, other, again = (sample.group for sample in make_sums(rows, group="text").samples())
    assert one is not None
    assert other is not None
    assert one == again != other
    assert one[:50] == other[:50] == "a" * 50
    assert len(one) < 100


def test_texts_have_groups_as_well() -> None:
    rows = [{"text": "one two", "book": book} for book in (1.5, 1.5, 2)]
    samples = Perplexity(data=rows, text="text", group="book").samples()
    assert [sample.group for sample in samples] == ["1.5", "1.5", "2"]


def make_samples(*groups: str | None) -> list[SampleResult]:
    return [SampleResult("s", row, group=group) for row, group in enumerate(groups)]


def test_columns_hold_a_number_for_each_group_in_memory_and_in_the_index(tmp_path: Path) -> None:
    samples = make_samples("x", "y", "x")
    file = SamplesFile(tmp_path / "samples.jsonl")
    for sample in reversed(samples):
        file.append(sample)
    file.finish_suite()
    file.close()
    expected = collect_columns(samples).groups
    assert expected[0] == expected[2] != expected[1]
    assert SamplesReader(tmp_path / "samples.jsonl").columns("s").groups == expected
    assert SampleIndex(tmp_path / "samples.jsonl").read("s").groups == expected


def test_index_of_samples_without_groups_is_as_before_and_reads_as_none(tmp_path: Path) -> None:
    file = SamplesFile(tmp_path / "samples.jsonl")
    for sample in make_samples(None, None):
        file.append(sample)
    file.finish_suite()
    file.close()
    assert b"groups" not in (tmp_path / "samples.index").read_bytes()
    found = SampleIndex(tmp_path / "samples.jsonl").read("s")
    assert list(found.groups) == [0, 0]


def test_line_keeps_its_group_and_an_older_line_has_none() -> None:
    (sample,) = make_samples("text 1")
    assert parse_sample(to_line(sample)).group == "text 1"
    assert parse_sample(b'{"suite":"s","index":0}').group is None
    with pytest.raises(ValueError, match="group are texts"):
        parse_sample(b'{"suite":"s","index":0,"group":1}')
