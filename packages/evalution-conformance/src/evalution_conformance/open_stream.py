"""A stream of the session that a check reads, bounded, and closed whatever happens."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager

import evalution_core.streams
from evalution_conformance.subject import Subject, succeeded
from evalution_conformance.watch import let_go, within
from evalution_core import (
    GenerationOutput,
    GenerationRequest,
    RequestFailure,
    RequestStream,
)

CAP = 2
"""Requests that may run at once in it."""


@contextmanager
def open_stream(
    subject: Subject, requests: Iterator[tuple[int, GenerationRequest]]
) -> Generator[RequestStream[int, GenerationOutput | RequestFailure]]:
    """A stream with a small batch, closed at the end without waiting for ever."""

    def call(
        source: Iterable[tuple[int, GenerationRequest]],
    ) -> Iterator[tuple[int, GenerationOutput | RequestFailure]]:
        results = subject.session.generate_continuous(source, batch_size=CAP)
        if not isinstance(results, Generator | RequestStream):
            raise AssertionError("generate_continuous() must return a RequestStream or a generator")
        return results  # pyright: ignore[reportUnknownVariableType]

    stream = evalution_core.streams.open_stream(call, requests)
    try:
        yield stream
    except BaseException:
        let_go(stream.close)  # it may hang, and must not hide what was found
        raise
    within(stream.close, timeout=subject.patience, doing="closing a stream")


def read_one(stream: Iterator[tuple[int, GenerationOutput | RequestFailure]]) -> None:
    """Take one result, which must be an output."""
    _, result = next(stream)
    succeeded(result)
