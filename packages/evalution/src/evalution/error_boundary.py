"""The runner's border to engines and suites of others: their exceptions become its own."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from evalution.redaction import mask_text
from evalution_core import EngineRuntimeError, EvalutionError


class wrap_errors:
    """Raise what isn't an `EvalutionError` as `kind`, with the original as cause.

    An engine that calls `sys.exit` fails like any other: it may not end the run as a success.
    """

    # No generator: a border is crossed several times for each sample.
    __slots__ = ("_doing", "_kind")

    def __init__(self, doing: str, kind: type[EvalutionError] = EngineRuntimeError):
        self._doing = doing
        self._kind = kind

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, EvalutionError) or not isinstance(error, Exception | SystemExit):
            return
        text = f"{self._doing}: {type(error).__name__}: {error}"
        raise self._kind(mask_text(text)) from error


def clean_up(error: BaseException, *steps: Callable[[], object]) -> None:
    """Take every step after `error`; what fails becomes a note: the first error counts."""
    for step in steps:
        try:
            with wrap_errors("cleaning up"):
                step()
        except EvalutionError as second:
            error.add_note(f"then {type(second).__name__}: {second}")
