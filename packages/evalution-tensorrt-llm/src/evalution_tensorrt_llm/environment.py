"""TensorRT-LLM's switches that are environment variables, set while it starts, and its output."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout

from evalution_enginekit.runtime import process_environment

_QUIET = {"TLLM_LOG_LEVEL": "warning"}
_PRIVATE = {"TRTLLM_NO_USAGE_STATS": "1"}


@contextmanager
def starting() -> Generator[None]:
    """A context for importing the runtime and for starting it.

    It sends no usage statistics, logs warnings unless the caller has asked for more, and prints to
    standard error, because standard output belongs to whoever prints results. Afterwards the
    process environment is what it was; processes started inside keep what they were given.
    """
    with process_environment(_PRIVATE, defaults=_QUIET), redirect_stdout(sys.stderr):
        yield
