"""Answers that a session took back or made up: reported the same, in one run or in two."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution import Generation, MultipleChoice
from evalution.runs.options import TooManyFailuresError
from evalution.suites.tasks.glue import MRPC
from evalution.suites.tasks.mmlu import MMLU
from evalution_core import EngineRuntimeError, GenerationOutput

ROWS = [{"q": f"{i} + 0?", "a": "4"} for i in range(10)]


def sums(name: str = "sums") -> Generation:
    return Generation(data=ROWS, prompt="q", target="a", name=name)


def doubling(*rows: int, dies_after: int | None = None) -> Any:
    """Answers these rows twice, and makes one answer up."""

    count = itertools.count()

    def script(events: Any) -> Iterator[Any]:
        for key, answer in events:
            if next(count) == dies_after:
                raise RuntimeError("device lost")
            yield key, answer
            if key[0] in rows:
                yield key, answer
        yield "stranger", GenerationOutput("p", "4")

    return script


def files(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The results without timings, and the samples."""
    found = json.loads((folder / "results.json").read_bytes())
    for part in (found, *found["suites"]):
        del part["timings"]
    return found, (folder / "samples.jsonl").read_bytes()


def test_run_in_two_parts_reports_of_both_what_one_would(
    scripted: Any, scripted_session: Any, tmp_path: Path
) -> None:
    tests = [sums("one"), sums("two")]

    def run(folder: str, script: Any) -> evalution.RunResult:
        engine = scripted(scripted_session(script))
        return evalution.run(engine=engine, model="m", tests=tests, output=tmp_path / folder)

    at_once = run("at once", doubling(3, 5))
    # In the second part the session does nothing wrong any more: what it did is not forgotten.
    with pytest.raises(EngineRuntimeError, match="device lost"):
        run("in two", doubling(3, 5, dies_after=10))
    asked: list[Any] = []

    def counting(events: Any) -> Iterator[Any]:
        for key, answer in events:
            asked.append(key)
            yield key, answer
        yield "stranger", GenerationOutput("p", "4")

    in_two = run("in two", counting)
    assert [suite.failed for suite in at_once.suites] == [2, 2]
    assert at_once.suites[0].errors == in_two.suites[0].errors != []
    assert files(tmp_path / "at once")[0]["suites"][0] == files(tmp_path / "in two")[0]["suites"][0]
    own = [
        [line for line in files(tmp_path / folder)[1].splitlines() if b'"suite": "one"' in line]
        for folder in ("at once", "in two")
    ]
    assert own[0] == own[1]
    assert asked == [(index, 0) for index in range(10)], "the first suite was asked nothing again"


def test_what_was_taken_back_is_asked_again_with_all_that_failed(
    scripted: Any, scripted_session: Any, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def run(script: Any = iter, **options: Any) -> evalution.SuiteResult:
        def counting(events: Any) -> Iterator[Any]:
            for key, answer in script(events):
                asked.append(key)
                yield key, answer

        asked.clear()
        engine = scripted(scripted_session(counting))
        result = evalution.run(
            engine=engine, model="m", tests=[sums()], output=tmp_path / "run", **options
        )
        return result.suites[0]

    assert run(doubling(3)).failed == 1
    assert run(retry_failed=True).failed == 0
    assert asked == [(3, 0)]
    assert run(retry_failed=True).failed == 0, "a row that was asked again is like any other"
    assert asked == []


def test_row_that_is_taken_back_shows_what_was_asked_and_counts_as_its_suite_says(
    scripted_session: Any, tmp_path: Path
) -> None:
    for subject in ("abstract_algebra", "anatomy"):
        for split in ("dev", "test"):
            file = tmp_path / subject / f"{split}.jsonl"
            file.parent.mkdir(exist_ok=True)
            row = {"question": "?", "choices": list("abcd"), "answer": 0}
            file.write_text(f"{json.dumps(row)}\n" * 2)
    suite = MMLU(data=str(tmp_path), subsets=["stem.abstract_algebra", "stem.anatomy"])
    session = scripted_session(doubling(1))
    found = evalution.run(session=session, tests=[suite]).suites[0]
    counts = {name: metric.n for name, metric in found.metrics.items()}
    assert counts == {"acc": 4, "acc,stem.abstract_algebra": 2, "acc,stem.anatomy": 2}
    assert [sample.index for sample in found.samples if sample.prompt is None] == []
    assert list(found.samples[1].metrics) == ["acc", "acc,stem.abstract_algebra"]


def test_row_that_is_taken_back_is_classified_wrongly(scripted_session: Any) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "label": 0}] * 4
    suite = MRPC(data=rows)
    assert evalution.run(session=scripted_session(), tests=[suite]).suites[0].metrics["f1"].n == 4
    found = evalution.run(session=scripted_session(doubling(2)), tests=[suite]).suites[0]
    assert found.metrics["f1"].n == found.metrics["acc"].n == 4


def test_more_failures_than_allowed_end_the_run_here_too(scripted_session: Any) -> None:
    with pytest.raises(TooManyFailuresError, match="row 3: the session answered"):
        evalution.run(session=scripted_session(doubling(3)), tests=[sums()], on_error="raise")


def test_answer_that_came_twice_in_an_open_row_counts_no_tokens(
    scripted: Any, scripted_session: Any, tmp_path: Path
) -> None:
    def twice(dies_after: int) -> Any:
        def script(events: Any) -> Iterator[Any]:
            for count, (key, answer) in enumerate(events):
                if count == dies_after:
                    raise RuntimeError("device lost")
                yield key, answer
                if key == (1, 0):
                    yield key, answer

        return script

    rows = [{"q": str(i), "choices": ["x", "yy"], "right": 0} for i in range(4)]
    suite = MultipleChoice(data=rows, prompt="q", choices="choices", target="right")

    def run(folder: str, dies_after: int) -> bytes:
        engine = scripted(scripted_session(twice(dies_after)))
        evalution.run(engine=engine, model="m", tests=[suite], output=tmp_path / folder)
        return (tmp_path / folder / "samples.jsonl").read_bytes()

    with pytest.raises(EngineRuntimeError, match="device lost"):
        run("in two", 6)
    assert run("in two", 99) == run("at once", 99)
