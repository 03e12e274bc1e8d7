"""What a session can do wrong, and what it costs: never a better score, never finished work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution import Generation, MultipleChoice, Perplexity
from evalution.progress import Progress
from evalution.runs.options import RunOptions
from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    InvalidRequestError,
    Model,
    RequestFailure,
)
from evalution_enginekit.mock import Mock

ROWS = [{"q": f"{i} + 0?", "a": "4", "choices": ["x", "yy"], "right": 0} for i in range(10)]


def generation(**options: Any) -> Generation:
    return Generation(data=ROWS, prompt="q", target="a", **options)


def choice(**options: Any) -> MultipleChoice:
    return MultipleChoice(data=ROWS, prompt="q", choices="choices", target="right", **options)


def run(session: Any, suite: Any) -> evalution.SuiteResult:
    return evalution.run(session=session, tests=[suite]).suites[0]


def test_every_row_is_answered_and_counted(scripted_session: Any) -> None:
    result = run(scripted_session(), generation())
    assert (result.n, result.failed, result.requests) == (10, 0, 10)
    assert result.metrics["exact_match"].value == 1.0
    assert [sample.index for sample in result.samples] == list(range(10))


def test_answers_may_come_in_any_order(scripted_session: Any) -> None:
    result = run(scripted_session(lambda events: iter(list(events)[::-1])), choice())
    assert (result.n, result.requests, result.metrics["acc"].value) == (10, 20, 1.0)
    assert [sample.index for sample in result.samples] == list(range(10))


def test_lost_answers_are_failed_samples_and_count_as_wrong(scripted_session: Any) -> None:
    session = scripted_session(lambda events: iter(list(events)[::2]))
    result = run(session, generation())
    assert (result.n, result.failed) == (10, 5)
    assert result.metrics["exact_match"].value == 0.5
    assert result.metrics["exact_match"].n == 10
    assert result.samples[1].error == (
        "EngineRuntimeError: the session ended without an answer to request 0"
    )
    assert result.first_failure == f"row 1: {result.samples[1].error}"


def test_session_that_stops_early_fails_what_it_did_not_read(scripted_session: Any) -> None:
    class Early(scripted_session):
        def generate_continuous(self, requests: Any, *, batch_size: Any = None) -> Iterator[Any]:
            key, request = next(iter(requests))
            yield key, self.generate([request])[0]

    result = run(Early(), generation(max_rows=3))
    assert (result.n, result.failed, result.metrics["exact_match"].n) == (3, 2, 3)
    assert result.metrics["exact_match"].value == pytest.approx(1 / 3)
    assert result.first_failure == (
        "row 1: EngineRuntimeError: the session ended before it read row 1"
    )


def test_session_that_keeps_an_error_of_its_input_to_itself_is_no_success(
    scripted_session: Any,
) -> None:
    class Swallowing(scripted_session):
        def generate_continuous(self, requests: Any, *, batch_size: Any = None) -> Iterator[Any]:
            try:
                yield from super().generate_continuous(requests)
            except ConfigurationError:
                return

    class Once(Generation):
        passes = 0

        def samples(self, limit: int | None = None) -> Iterator[Any]:
            self.passes += 1
            for sample in super().samples(limit):
                if self.passes > 1 and sample.index == 1:
                    raise ConfigurationError("row 1 is gone")
                yield sample

    with pytest.raises(ConfigurationError, match="row 1 is gone"):
        run(Swallowing(), Once(data=ROWS, prompt="q", target="a"))


def test_rows_that_vanish_after_the_check_are_reported(
    scripted_session: Any, write_rows: Any
) -> None:
    suite = Generation(data=write_rows(*ROWS), prompt="q", target="a")
    with evalution.Run(None, session=scripted_session()) as handle:
        handle.prepare([suite])
        write_rows(*ROWS[:4])
        handle.run(suite)
    assert handle.result.suites[0].errors == [
        "10 samples were checked before the run, but there were 4 in it: the data changed meanwhile"
    ]
    assert handle.result.failed == 1


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ((3, 0), "answered request 0 of row 3 after that row was done"),
        ("stranger", "answered 'stranger', which was never asked"),
    ],
)
def test_answer_to_no_open_request_ends_the_run_and_keeps_what_was_finished(
    scripted: Any, scripted_session: Any, tmp_path: Path, key: Any, message: str
) -> None:
    def strange(events: Any) -> Iterator[Any]:
        for count, (own, answer) in enumerate(events):
            yield own, answer
            if count == 5:
                yield key, answer

    def run_on(script: Any = iter) -> Any:
        engine = scripted(scripted_session(script))
        return evalution.run(engine=engine, model="m", tests=[generation()], output=tmp_path)

    with pytest.raises(EngineRuntimeError, match=message):
        run_on(strange)
    found = run_on()["rows"]
    assert (found.n, found.failed, found.cached) == (10, 0, 6)


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


def test_failed_request_leaves_the_others_alone(scripted_session: Any) -> None:
    def poisoned(events: Any) -> Iterator[Any]:
        for key, answer in events:
            is_poison = key == (2, 1)
            yield key, RequestFailure(InvalidRequestError("poison")) if is_poison else answer

    result = run(scripted_session(poisoned), choice())
    assert (result.n, result.failed, result.metrics["acc"].value) == (10, 1, 0.9)
    assert result.samples[2].error == "InvalidRequestError: poison"
    assert result.samples[2].metrics == dict.fromkeys(result.metrics, 0.0)
    assert result.samples[2].prediction is None


def test_runtime_that_dies_ends_the_suite_and_keeps_what_was_done(
    scripted_session: Any, tmp_path: Any
) -> None:
    def dying(events: Any) -> Iterator[Any]:
        for count, event in enumerate(events):
            if count == 4:
                raise RuntimeError("device lost, token=hunter2")
            yield event

    session = scripted_session(dying)
    handle = evalution.Run(None, None, RunOptions(output=tmp_path / "run"), session=session)
    with pytest.raises(EngineRuntimeError, match="suite 'rows': RuntimeError: device lost"):
        handle.run(generation())
    assert handle.result.status == "failed"
    assert len((tmp_path / "run" / "samples.jsonl").read_text().splitlines()) == 4


def test_no_more_samples_are_open_than_the_session_reads_ahead() -> None:
    class Counting(Generation):
        opened = 0

        def samples(self, limit: int | None = None) -> Iterator[Any]:
            for sample in super().samples(limit):
                self.opened += 1
                yield sample

    suite = Counting(
        data=[{"q": str(i), "a": ""} for i in range(200)],
        prompt="q",
        target="a",
        max_new_tokens=1,
    )
    ahead: list[int] = []

    class Watching(Progress):
        def suite_started(self, name: str, total: int) -> None:
            suite.opened = 0

        def sample_finished(self, done: int, failed: int, running: Any) -> None:
            ahead.append(suite.opened - done)

    with evalution.Run(Mock(batch_size=4), "m", RunOptions(progress=Watching())) as handle:
        handle.run(suite)
    # In flight, waiting, and finished but unread: a few batches, whatever the number of rows.
    assert max(ahead) <= 4 * 4


def test_what_was_cut_is_counted() -> None:
    long = [{"q": "x" * 100, "a": "y"}, {"q": "x", "a": "y"}]
    suite = Generation(data=long, prompt="q", target="a", max_new_tokens=4)
    result = evalution.run(engine=Mock(max_model_len=32), model="m", tests=[suite]).suites[0]
    assert result.truncated == 1
    assert result.samples[0].tokens["truncated"] > 0
    assert result.samples[1].tokens["truncated"] == 0


def test_engine_that_does_not_count_is_not_guessed_at(scripted_session: Any) -> None:
    assert run(scripted_session(), generation()).truncated is None


@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_texts_are_scored_alike_in_any_batch(batch_size: int | None) -> None:
    suite = Perplexity(data=ROWS, text="q", batch_size=batch_size)
    with Mock().build(Model("m")) as session:
        result = run(session, suite)
        direct = session.loglikelihood_rolling([next(suite.samples()).requests[0]])  # pyright: ignore[reportArgumentType]
    assert result.n == 10
    assert result.samples[0].extracted["logprob"] == direct[0].logprob
