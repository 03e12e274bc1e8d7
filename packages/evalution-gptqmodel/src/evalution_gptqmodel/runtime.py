"""The import of GPTQModel, and the process kept as it was around its import and its loader."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO
from typing import Any, TextIO, cast

from evalution_enginekit import import_runtime
from evalution_enginekit.runtime import process_environment
from evalution_gptqmodel.upstream import Runtime

TORCH = ">=2.8"
TRANSFORMERS = ">=5.14,<6"
GPTQMODEL = ">=7.6,<8"
INSTALL = "pip install evalution-gptqmodel"

_log = logging.getLogger(__name__)

_LOUD = (
    # GPTQModel's own, which prints, and from a thread of its own.
    "logbar",
    # torchao 0.18 with a torch that it wasn't built for: extensions that GPTQModel doesn't use.
    "torchao",
    # torch 2.13 about how torchao 0.18 registers its enums.
    "torch.utils._pytree",
)


def import_companions() -> None:
    """Import torch and Transformers.

    Raises:
        EngineUnavailableError: one is missing, of another version, or can't be imported.
    """
    import_runtime("torch", TORCH, install=INSTALL)
    import_runtime("transformers", TRANSFORMERS, install=INSTALL)


def import_gptqmodel() -> Runtime:
    """Import the package `gptqmodel`, with the process's environment and logging as they were.

    Raises:
        EngineUnavailableError: it is missing, of another version, or can't be imported; so for
            torch and Transformers.
    """
    # Both first: what they read from the environment is read before GPTQModel changes it.
    import_companions()
    if "gptqmodel" in sys.modules:
        return _import()
    # The import sets variables for the whole process: tokenicer 0.0.14 moves the Hub's cache to
    # /tmp, gptqmodel 7.6 and 7.7 renumber devices and change how torch allocates on them.
    with (
        process_environment({}),
        _keep_root_logging(),
        warnings.catch_warnings(),
        divert_output(),
    ):
        # About the source of torchao 0.18, where it isn't compiled yet.
        warnings.simplefilter("ignore")
        # Made by the import, its logger would begin at INFO, and with a line on standard output.
        with redirect_stdout(StringIO()):
            import_module("logbar").LogBar.shared()
        _silence()
        return _import()


def find_packable_layer() -> type:
    """Return GPTQModel's class of layers whose weights can be read, once it is imported."""
    found: type = import_module("gptqmodel.nn_modules.qlinear").PackableQuantLinear
    return found


@contextmanager
def divert_output() -> Generator[None]:
    """Send what this thread prints, a banner or progress, to this module's log, at level debug.

    A run's standard output is its own. Failures are exceptions.
    """
    levels = {name: logging.getLogger(name).level for name in _LOUD}
    _silence()
    try:
        with redirect_stdout(cast("TextIO", _Diverted(sys.stdout))):
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _silence() -> None:
    for name in _LOUD:
        logging.getLogger(name).setLevel(logging.ERROR)


def _import() -> Runtime:
    return cast(Runtime, import_runtime("gptqmodel", GPTQMODEL, install=INSTALL))


class _Diverted:
    """Sends one thread's lines to the log, and all others to the stream."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            return self._stream.write(text)
        for line in filter(str.strip, text.splitlines()):
            _log.debug("%s", line.rstrip())
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _keep_root_logging() -> Generator[None]:
    """Give the root a handler: then the `logging.basicConfig` of tokenicer 0.0.14 does nothing."""
    root = logging.getLogger()
    handler = logging.NullHandler()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
