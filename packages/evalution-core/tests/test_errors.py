"""The error tree: what a caller can catch, and what of an error crosses a process."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from evalution_core import (
    ConfigurationError,
    ContextLengthError,
    EngineRuntimeError,
    EngineUnavailableError,
    EvalutionError,
    InvalidRequestError,
    SessionClosedError,
    UnknownEngineError,
    UnsupportedRequestError,
)
from evalution_core.errors import RemoteCause, raise_failures

BASES: dict[type[EvalutionError], tuple[type[BaseException], ...]] = {
    EvalutionError: (Exception,),
    ConfigurationError: (EvalutionError, ValueError),
    UnknownEngineError: (ConfigurationError, LookupError),
    EngineUnavailableError: (EvalutionError, ImportError),
    InvalidRequestError: (EvalutionError, ValueError),
    ContextLengthError: (InvalidRequestError,),
    UnsupportedRequestError: (EvalutionError, NotImplementedError),
    SessionClosedError: (EvalutionError, RuntimeError),
    EngineRuntimeError: (EvalutionError, RuntimeError),
}
each_class = pytest.mark.parametrize("kind", list(BASES), ids=lambda kind: kind.__name__)


class ForeignError(Exception):
    """Stands for an exception class that the receiving process doesn't have."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        raise AssertionError("a foreign cause must not be pickled")


@each_class
def test_an_error_is_caught_as_its_parent_and_as_a_builtin(kind: type[EvalutionError]) -> None:
    for parent in BASES[kind]:
        assert issubclass(kind, parent)


def test_an_unsupported_request_is_not_an_invalid_one() -> None:
    assert not issubclass(UnsupportedRequestError, InvalidRequestError)


@each_class
def test_an_error_survives_pickling_with_its_text_and_notes(kind: type[EvalutionError]) -> None:
    error = kind("the message")
    error.add_note("seen on row 3")
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is kind
    assert str(copied) == "the message"
    assert copied.args == ("the message",)
    assert copied.__notes__ == ["seen on row 3"]
    assert copied.__cause__ is None


@each_class
def test_a_foreign_cause_becomes_its_type_name_and_text(kind: type[EvalutionError]) -> None:
    error = kind("the runtime failed")
    error.__cause__ = ForeignError("out of memory")
    cause = pickle.loads(pickle.dumps(error)).__cause__
    assert isinstance(cause, RemoteCause)
    assert str(cause) == f"{__name__}.ForeignError: out of memory"


def test_a_cause_of_our_own_stays_what_it_is_over_two_processes() -> None:
    inner = EngineRuntimeError("step failed", in_flight=["a"])
    inner.__cause__ = ForeignError("boom")
    outer = ConfigurationError("no session")
    outer.__cause__ = inner
    twice = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(outer))))
    assert isinstance(twice.__cause__, EngineRuntimeError)
    assert twice.__cause__.in_flight == ("a",)
    assert str(twice.__cause__.__cause__) == f"{__name__}.ForeignError: boom"


@pytest.mark.parametrize("kind", [InvalidRequestError, ContextLengthError, UnsupportedRequestError])
def test_failures_survive_pickling(kind: type[InvalidRequestError]) -> None:
    failure = ContextLengthError("too long")
    failure.__cause__ = ForeignError("tokenizer")
    copied = pickle.loads(pickle.dumps(kind("2 refused", failures={4: failure})))
    assert list(copied.failures) == [4]
    assert type(copied.failures[4]) is ContextLengthError
    assert str(copied.failures[4]) == "too long"
    assert isinstance(copied.failures[4].__cause__, RemoteCause)


def test_failures_are_a_copy_and_empty_by_default() -> None:
    given: dict[int, EvalutionError] = {0: InvalidRequestError("x")}
    error = InvalidRequestError("refused", failures=given)
    given.clear()
    assert list(error.failures) == [0]
    assert InvalidRequestError("refused").failures == {}


def test_requests_in_flight_survive_pickling() -> None:
    error = EngineRuntimeError("died", in_flight=[("suite", 1), "b"])
    assert error.in_flight == (("suite", 1), "b")
    assert pickle.loads(pickle.dumps(error)).in_flight == (("suite", 1), "b")


@pytest.mark.parametrize(
    ("failures", "kind"),
    [
        ({0: ContextLengthError("a"), 1: ContextLengthError("b")}, ContextLengthError),
        ({0: UnsupportedRequestError("a")}, UnsupportedRequestError),
        ({0: ContextLengthError("a"), 1: InvalidRequestError("b")}, InvalidRequestError),
        ({0: UnsupportedRequestError("a"), 1: InvalidRequestError("b")}, InvalidRequestError),
        ({0: EngineRuntimeError("a")}, InvalidRequestError),
    ],
)
def test_the_error_of_a_list_call_has_the_class_that_its_failures_share(
    failures: dict[int, EvalutionError], kind: type[EvalutionError]
) -> None:
    with pytest.raises(EvalutionError) as caught:
        raise_failures(failures, 9)
    assert type(caught.value) is kind
    assert isinstance(caught.value, InvalidRequestError | UnsupportedRequestError)
    assert caught.value.failures == failures


@pytest.mark.parametrize(("count", "more"), [(3, ""), (4, "; and 1 more")])
def test_failures_beyond_the_third_are_counted(count: int, more: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        raise_failures({index: InvalidRequestError(f"bad {index}") for index in range(count)}, 9)
    assert str(caught.value).endswith(f": [0] bad 0; [1] bad 1; [2] bad 2{more}")


def test_the_message_of_a_list_call_shows_three_failures_in_order_and_counts_the_rest() -> None:
    one = {2: InvalidRequestError("the continuation is empty")}
    with pytest.raises(InvalidRequestError) as caught:
        raise_failures(one, 7)
    assert (
        str(caught.value) == "1 of 7 requests refused, none was run: [2] the continuation is empty"
    )
    many = {index: InvalidRequestError(f"bad {index}") for index in (9, 3, 0, 5, 4)}
    with pytest.raises(InvalidRequestError) as caught:
        raise_failures(many, 10)
    assert str(caught.value) == (
        "5 of 10 requests refused, none was run: [0] bad 0; [3] bad 3; [4] bad 4; and 2 more"
    )


def test_a_cause_crosses_without_its_credentials() -> None:
    error = EngineRuntimeError("no answer")
    error.__cause__ = ConnectionError("refused by https://me:hunter2@host.test")
    assert "hunter2" not in str(pickle.loads(pickle.dumps(error)).__cause__)


def test_the_text_of_an_import_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(EngineUnavailableError("needs acme>=2")))
    assert error.msg == str(error) == "needs acme>=2"
