"""TensorRT-LLM's switches that are environment variables, set while it starts, and its output."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout

_QUIET = {"TLLM_LOG_LEVEL": "warning"}
_PRIVATE = {"TRTLLM_NO_USAGE_STATS": "1"}


@contextmanager
def starting() -> Generator[None]:
    """A context for importing the runtime and for starting it.

    It sends no usage statistics, logs warnings unless the caller has asked for more, and prints to
    standard error, because standard output belongs to whoever prints results. Afterwards the
    process environment is what it was; processes started inside keep what they were given.
    """
    before = dict(os.environ)
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    os.environ.update(_PRIVATE)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
