from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution.runs.options import FailurePolicy, TooManyFailuresError
from evalution_core import ConfigurationError, InvalidRequestError, RequestFailure

ROWS = [{"q": f"{i} + 0?", "a": "4"} for i in range(10)]


def run(session: Any, **options: Any) -> evalution.RunResult:
    tests = [
        evalution.Generation(data=ROWS, prompt="q", target="a", name=name)
        for name in ("one", "two")
    ]
    return evalution.run(session=session, tests=tests, **options)


@pytest.fixture
def poisoned(scripted_session: Any) -> Any:
    """A session that refuses rows 2 and 5."""

    def script(events: Any) -> Any:
        for key, answer in events:
            is_bad = key[0] in (2, 5)
            yield key, RequestFailure(InvalidRequestError("poison")) if is_bad else answer

    return scripted_session(script)


def test_failures_are_recorded_and_the_run_goes_on(poisoned: Any) -> None:
    assert [suite.failed for suite in run(poisoned).suites] == [2, 2]


def test_first_failure_ends_the_run_where_that_was_asked(poisoned: Any) -> None:
    with pytest.raises(TooManyFailuresError) as caught:
        run(poisoned, on_error="raise")
    assert str(caught.value) == "suite 'one', row 2: poison (on_error: raise)"


@pytest.mark.parametrize("bound", [0, 1, 2, 3])
def test_more_failures_than_allowed_end_the_run_over_all_suites(poisoned: Any, bound: int) -> None:
    with pytest.raises(TooManyFailuresError) as caught:
        run(poisoned, max_failures=bound)
    suite, row = [("one", 2), ("one", 5), ("two", 2), ("two", 5)][bound]
    assert str(caught.value) == (
        f"{bound + 1} samples failed, and max_failures is {bound}; the last: "
        f"suite {suite!r}, row {row}: poison"
    )


@pytest.mark.parametrize("identity", [None, {"model.safetensors": "one"}])
def test_run_that_can_go_on_says_how(poisoned: Any, identity: Any, tmp_path: Path) -> None:
    poisoned.identity = lambda: identity
    with pytest.raises(TooManyFailuresError) as caught:
        run(poisoned, on_error="raise", output=tmp_path)
    how = f"; with --retry-failed it goes on in {tmp_path}, and asks again for what failed"
    expected = f"suite 'one', row 2: poison (on_error: raise){how if identity else ''}"
    assert str(caught.value) == expected


def test_as_many_failures_as_allowed_end_nothing(poisoned: Any) -> None:
    assert run(poisoned, max_failures=4).failed == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"on_error": "rais"},
            "on_error must be record or raise, got 'rais'; did you mean 'raise'?",
        ),
        ({"on_error": None}, "on_error must be record or raise, got None"),
        ({"max_failures": -1}, "max_failures must not be negative, got -1"),
        ({"max_failures": True}, "max_failures must be an int, got True"),
        ({"max_failures": "3"}, "max_failures must be an int, got '3'"),
    ],
)
def test_policy_that_makes_no_sense_is_reported(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FailurePolicy(**options)
    assert str(caught.value) == message
