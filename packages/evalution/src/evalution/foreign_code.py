"""The runner's border to engines: what they raise becomes one of the contract's errors."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from evalution_core import EngineRuntimeError, EvalutionError, scrub


@contextmanager
def foreign_errors(doing: str) -> Generator[None]:
    """Raise what isn't an `EvalutionError` as `EngineRuntimeError`, with the original as cause."""
    try:
        yield
    except EvalutionError:
        raise
    except Exception as error:  # the border to foreign code: an engine may raise anything
        raise EngineRuntimeError(scrub(f"{doing}: {type(error).__name__}: {error}")) from error
