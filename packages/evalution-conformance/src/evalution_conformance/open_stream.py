"""A stream of the session that a check reads, bounded, and closed whatever happens."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

from evalution_conformance.subject import Subject, succeeded
from evalution_conformance.watch import let_go, within
from evalution_core import GenerationOutput, GenerationRequest, RequestFailure

CAP = 2
"""Requests that may run at once in it."""


@contextmanager
def open_stream(
    subject: Subject, requests: Iterator[tuple[int, GenerationRequest]]
) -> Generator[Generator[tuple[int, GenerationOutput | RequestFailure]]]:
    """A stream with a small batch, closed at the end without waiting for ever."""
    stream = subject.session.generate_continuous(requests, batch_size=CAP)
    if not isinstance(stream, Generator):
        raise AssertionError("generate_continuous() must give an iterator with close()")
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
