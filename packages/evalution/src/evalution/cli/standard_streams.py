"""The standard streams of the console script, also where nobody reads them any more.

A run must not end because the reader behind a pipe has seen enough, or, under nohup, its terminal
is gone.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING, TextIO

from evalution.cli.errors import EXIT_FAILED, tell
from evalution_core import EvalutionError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STDOUT, _STDERR = 1, 2


@contextmanager
def lasting_streams() -> Generator[None]:
    """Within it, what can't be written to stdout or stderr is dropped, and the command goes on.

    A character that a terminal can't show is replaced. At the end an output that was lost is told
    on stderr, and a status of 0 becomes 1; not so where its reader left, as `head` does.
    """
    before = sys.stdout, sys.stderr
    _occupy_closed()
    output, errors = _LossyFile(_STDOUT), _LossyFile(_STDERR)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _text(output, sys.stdout, "replace")
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(errors, sys.stderr, "backslashreplace")
    try:
        yield
    except SystemExit as ended:
        sys.stdout.flush()
        if output.loss is None or output.loss.errno == errno.EPIPE:
            raise
        tell(EvalutionError(f"the output can't be written: {output.loss.strerror}"))
        sys.exit(ended.code or EXIT_FAILED)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


class _LossyFile(FileIO):
    """A descriptor that, once it can't be written, drops what comes."""

    def __init__(self, descriptor: int):
        super().__init__(descriptor, "w", closefd=False)
        self.loss: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        if self.loss is None:
            try:
                return super().write(data)
            except OSError as error:
                self.loss = error
        return memoryview(data).nbytes


def _text(file: _LossyFile, stream: TextIO | None, errors: str) -> TextIO:
    """`file` for text, with the encoding and the buffering of `stream`; None if that was closed."""
    if not isinstance(stream, TextIOWrapper):
        return TextIOWrapper(BufferedWriter(file), encoding="utf-8", errors=errors)
    # Without a buffer where Python has none either: with PYTHONUNBUFFERED.
    return TextIOWrapper(
        file if stream.write_through else BufferedWriter(file),
        encoding=stream.encoding,
        errors=errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _occupy_closed() -> None:
    """Open on nothing what the caller closed, so that no journal gets the number of stdout."""
    for descriptor in (0, _STDOUT, _STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
