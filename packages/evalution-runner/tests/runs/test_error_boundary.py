"""Engines and suites of others raise anything anywhere: it is named, and never a success."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import evalution
from evalution import Generation, MultipleChoice
from evalution.error_boundary import clean_up, wrap_errors
from evalution.yaml_spec.run_spec import parse_engine
from evalution_core import ConfigurationError, EngineRuntimeError, EvalutionError
from evalution_enginekit.mock import Mock

ROWS = [{"q": f"{i}?", "a": "4", "choices": ["x", "yy"], "right": 0} for i in range(3)]


def generation(kind: type[Generation] = Generation, **options: Any) -> Generation:
    return kind(data=ROWS, prompt="q", target="a", name="mine", **options)


def test_engine_that_exits_fails() -> None:
    with (
        pytest.raises(EngineRuntimeError, match="loading: SystemExit: 0"),
        wrap_errors("loading"),
    ):
        raise SystemExit(0)


def test_what_fails_while_cleaning_up_is_a_note_and_the_rest_is_done() -> None:
    done: list[int] = []
    error = ValueError("first")

    def fail() -> None:
        raise OSError("second")

    clean_up(error, fail, lambda: done.append(1), fail)
    assert done == [1]
    assert error.__notes__ == ["then cleaning up: OSError: second"]


@dataclass(slots=True)
class NoDefault(Mock):
    def default_model(self) -> str | None:
        raise KeyError("model")


@dataclass(slots=True)
class BadOptions(Mock):
    def __post_init__(self) -> None:
        raise KeyError("dtype")


def test_engine_that_can_not_name_its_model_is_named() -> None:
    with pytest.raises(EngineRuntimeError, match="engine NoDefault: default_model: KeyError"):
        evalution.run(engine=NoDefault(), tests=[generation()])


def test_engine_that_can_not_be_made_is_named() -> None:
    with pytest.raises(ConfigurationError, match="engine BadOptions can't be made: KeyError"):
        parse_engine(f"{__name__}:BadOptions")


def test_answers_that_are_no_pairs_end_the_suite(scripted_session: Any) -> None:
    session = scripted_session(lambda events: (answer for _, answer in events))
    with pytest.raises(EngineRuntimeError, match="must give pairs of a request's key and an"):
        evalution.run(session=session, tests=[generation()])


def test_capabilities_may_be_a_list_and_what_is_none_is_reported(scripted_session: Any) -> None:
    session = scripted_session()
    type(session).capabilities = ["generate"]
    try:
        assert evalution.run(session=session, tests=[generation()]).failed == 0
        type(session).capabilities = 3
        with pytest.raises(EngineRuntimeError, match="capabilities: TypeError"):
            evalution.run(session=session, tests=[generation()])
    finally:
        del type(session).capabilities


def test_check_that_gives_nothing_is_no_check(scripted_session: Any) -> None:
    session = scripted_session()
    session.check = lambda: None
    choice = MultipleChoice(data=ROWS, prompt="q", choices="choices", target="right")
    with pytest.raises(EngineRuntimeError, match="must return a CheckResult, got None"):
        evalution.run(session=session, tests=[choice])


class Raising(Generation):
    def samples(self, limit: int | None = None) -> Iterator[Any]:
        for sample in super().samples(limit):
            if sample.index == 1:
                raise KeyError("column")
            yield sample


def test_samples_that_raise_name_the_suite_and_the_place() -> None:
    with pytest.raises(ConfigurationError, match="suite 'mine': sample 1: KeyError: 'column'"):
        evalution.run(engine=Mock(), model="m", tests=[generation(Raising)])


class Unscorable(Generation):
    def score(self, sample: Any, answers: Any) -> Any:
        if sample.index == 1:
            raise ZeroDivisionError("no words")
        return super().score(sample, answers)


class Unmeasured(Generation):
    def score(self, sample: Any, answers: Any) -> Any:
        found = super().score(sample, answers)
        found.measures = {}
        return found


class Number:
    def apply(self, text: str) -> Any:
        return 4


@pytest.mark.parametrize(
    ("suite", "failed", "message"),
    [
        (generation(Unscorable), 1, "row 1: ScoringError: suite 'mine', row 1: ZeroDivisionError"),
        (generation(Unmeasured), 3, "row 0: ScoringError: suite 'mine', row 0: KeyError"),
        (generation(filters=[Number()]), 3, "filter Number gave 4, which is no text"),
    ],
)
def test_answer_that_can_not_be_scored_is_a_failed_row(
    scripted_session: Any, suite: Generation, failed: int, message: str
) -> None:
    found = evalution.run(session=scripted_session(), tests=[suite]).suites[0]
    assert (found.n, found.failed) == (3, failed)
    assert found.metrics["exact_match"].n == 3
    assert message in str(found.first_failure)


def test_failure_that_is_no_error_is_reported(scripted_session: Any) -> None:
    from evalution_core import RequestFailure

    def odd(events: Any) -> Iterator[Any]:
        for key, _ in events:
            yield key, RequestFailure("went wrong")  # pyright: ignore[reportArgumentType]

    found = evalution.run(session=scripted_session(odd), tests=[generation()]).suites[0]
    assert found.failed == 3
    assert "the session gave 'went wrong' as a request's failure" in str(found.first_failure)


def test_load_that_fails_is_reported_even_if_its_folder_can_not_be_removed(
    scripted: Any, scripted_session: Any, tmp_path: Any
) -> None:
    class Stubborn(scripted_session):
        def identity(self) -> Any:
            raise RuntimeError("no identity")

        def close(self) -> None:
            raise RuntimeError("close failed")

    with pytest.raises(EvalutionError, match="no identity") as caught:
        evalution.run(
            engine=scripted(Stubborn()), model="m", tests=[generation()], output=tmp_path / "run"
        )
    assert any("close failed" in note for note in caught.value.__notes__)
    assert not (tmp_path / "run").exists()
