"""Streams of results: closing, cancelling, and plain generators as streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from evalution_core.requests import GenerationOutput, TextDelta
from evalution_core.streams import RequestStream, open_stream


class Source:
    """A generator of results that records whether it was closed."""

    def __init__(self, *results: tuple[str, object]):
        self.is_closed = False
        self.results = results

    def __iter__(self) -> Iterator[tuple[str, object]]:
        try:
            yield from self.results
        finally:
            self.is_closed = True


OUTPUT = GenerationOutput("p", "t")


def open_results(results: Iterable[tuple[str, Any]]) -> RequestStream[str, Any]:
    """The stream of a session that reads `a`, `b` and `c`, and then gives these results."""

    def answer(requests: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
        assert len(list(requests)) == 3
        return results

    return open_stream(answer, [(key, None) for key in "abc"])


def test_generator_becomes_a_stream() -> None:
    stream = open_results(Source(("a", 1), ("b", 2)))
    assert isinstance(stream, RequestStream)
    assert list(stream) == [("a", 1), ("b", 2)]


def test_closed_stream_closes_its_generator_and_ends() -> None:
    source = Source(("a", 1), ("b", 2))
    with open_results(source) as stream:
        assert next(stream) == ("a", 1)
        assert not source.is_closed
    assert source.is_closed
    stream.close()
    assert list(stream) == []


def test_stream_on_a_plain_iterator_can_be_closed() -> None:
    stream = open_results(iter([("a", 1), ("b", 2)]))
    next(stream)
    stream.close()
    assert list(stream) == []


def test_cancelled_key_yields_nothing_more_and_the_others_go_on() -> None:
    stream = open_results(
        Source(
            ("a", TextDelta("x")),
            ("b", OUTPUT),
            ("a", TextDelta("y")),
            ("a", OUTPUT),
            ("c", OUTPUT),
        )
    )
    assert next(stream) == ("a", TextDelta("x"))
    stream.cancel("a")
    assert list(stream) == [("b", OUTPUT), ("c", OUTPUT)]


def test_key_may_be_used_again_after_its_cancelled_request_ended() -> None:
    stream = open_results(Source(("a", OUTPUT), ("a", OUTPUT), ("b", OUTPUT)))
    stream.cancel("a")
    assert list(stream) == [("a", OUTPUT), ("b", OUTPUT)]


def test_error_of_the_generator_is_raised_by_the_stream() -> None:
    def failing() -> Iterator[tuple[str, int]]:
        yield "a", 1
        raise OSError("gone")

    stream = open_results(failing())
    assert next(stream) == ("a", 1)
    with pytest.raises(OSError, match="gone"):
        next(stream)


def test_stream_needs_its_three_methods() -> None:
    class Half(RequestStream[str, int]):
        def close(self) -> None: ...

    with pytest.raises(TypeError, match="cancel"):
        Half()  # pyright: ignore[reportAbstractUsage]


def upper(requests: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for key, text in requests:
        yield key, text.upper()


def test_opened_stream_cancels_only_what_is_in_flight() -> None:
    def two_ahead(requests: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        source = list(requests)
        yield from upper(source)

    stream = open_stream(two_ahead, [("a", "x"), ("b", "y"), ("c", "z")])
    assert next(stream) == ("a", "X")
    stream.cancel("a")
    stream.cancel("b")
    stream.cancel("unknown")
    assert list(stream) == [("c", "Z")]


def test_cancelling_a_request_that_is_yet_to_come_changes_nothing() -> None:
    stream = open_stream(upper, [("a", "x"), ("b", "y")])
    stream.cancel("b")
    assert list(stream) == [("a", "X"), ("b", "Y")]


def test_stream_of_the_session_is_returned_as_it_is() -> None:
    own = open_stream(upper, [("a", "x")])
    assert open_stream(lambda _: own, [("b", "y")]) is own
