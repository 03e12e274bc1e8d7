"""Errors in the form in which Inspect tells them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

# Inspect exports it nowhere else; its own command prints it without a traceback.
from inspect_ai._util.error import PrerequisiteError
from rich.text import Text

from evalution_core import EvalutionError


class ModelSetupError(PrerequisiteError, EvalutionError):
    """The engine or its model can't be had; nothing was run. The cause is Evalution's own error."""

    def __init__(self, message: str) -> None:
        # As it is: brackets in a plain string would be markup.
        super().__init__(Text(message))
        self.args = (message,)


@contextmanager
def told_by_inspect() -> Generator[None]:
    """Turn an error of ours into one that Inspect prints as a paragraph, without a traceback."""
    try:
        yield
    except EvalutionError as error:
        raise ModelSetupError(f"evalution: {error}") from error
