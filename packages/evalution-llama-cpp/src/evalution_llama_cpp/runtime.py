"""llama-cpp-python: its import, its log and its devices."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from string import digits
from typing import Any, cast

from evalution_core import EngineUnavailableError
from evalution_enginekit import import_runtime
from evalution_llama_cpp.options import DeviceName
from evalution_llama_cpp.upstream import Library, Registry

LLAMA_CPP_PYTHON = ">=0.3.36,<0.4"
INSTALL = "pip install evalution-llama-cpp"

_log = logging.getLogger("evalution_llama_cpp")

_LINES_KEPT = 40
_LINES_SHOWN = 4
_ERROR, _CONTINUED = 4, 5
"""Levels of ggml's log: an error, and the rest of the line before."""
_BACKENDS = {"cuda": ("cuda",), "metal": ("mtl", "metal"), "vulkan": ("vulkan",)}
"""Beginnings of ggml's names of devices, in lower case: `CUDA0`, `MTL0`, `Vulkan0`."""
_BUILDS = {"cuda": "-DGGML_CUDA=on", "metal": "-DGGML_METAL=on", "vulkan": "-DGGML_VULKAN=on"}
_GPU, _INTEGRATED_GPU = 1, 2


class RuntimeLog:
    """llama.cpp's log: the last lines are kept for errors; `echo` also writes all to stderr.

    The library has one callback for the whole process. Without one it writes to stderr.
    """

    def __init__(self) -> None:
        self.echo = False
        self._lines: deque[tuple[int, str]] = deque(maxlen=_LINES_KEPT)

    def add(self, level: int, text: bytes, _: Any = None) -> None:
        line = text.decode("utf-8", errors="replace")
        if self.echo:
            sys.stderr.write(line)
        if level == _CONTINUED and self._lines:
            level, before = self._lines.pop()
            line = before + line
        self._lines.append((level, line))

    def forget(self) -> None:
        self._lines.clear()

    def tail(self) -> str:
        """Return the last lines, or the errors alone if there are any, for the end of a message."""
        lines = [line.strip() for level, line in self._lines if level == _ERROR]
        lines = lines or [line.strip() for _, line in self._lines]
        shown = [line for line in lines if line][-_LINES_SHOWN:]
        return f": {' | '.join(shown)}" if shown else ""


LOG = RuntimeLog()


@cache
def load_library() -> Library:
    """Import the binding, start its backends and catch its log.

    Raises:
        EngineUnavailableError: llama-cpp-python is missing, of another version, or fails to load.
    """
    found = cast(
        Library,
        import_runtime(
            "llama_cpp", LLAMA_CPP_PYTHON, distributions=("llama-cpp-python",), install=INSTALL
        ),
    )
    _kept_callbacks.append(found.llama_log_callback(LOG.add))
    found.llama_log_set(_kept_callbacks[-1], ctypes.c_void_p(0))
    found.llama_backend_init()
    return found


_kept_callbacks: list[Any] = []
"""The library holds a bare pointer to them."""


@dataclass(frozen=True, slots=True)
class Device:
    """The device of a session; `offloads` says whether layers go to a GPU.

    `gpus` are all that the model may be spread over, by ggml's names. `fallback` says why it isn't
    the device that was asked for; None if it is.
    """

    name: str
    offloads: bool
    gpus: tuple[str, ...] = ()
    fallback: str | None = None


@dataclass(frozen=True, slots=True)
class GPU:
    """A GPU of this machine by ggml's handle; an integrated one shares the CPU's memory."""

    handle: int
    is_integrated: bool = False


def find_gpus(library: Library) -> dict[str, GPU]:
    """Return the GPUs that this build can use here, by ggml's names (`CUDA0`)."""
    if not library.llama_supports_gpu_offload():
        return {}
    registry = _load_registry()
    found: dict[str, GPU] = {}
    for index in range(registry.ggml_backend_dev_count()):
        device = registry.ggml_backend_dev_get(index)
        kind = registry.ggml_backend_dev_type(device)
        if kind in (_GPU, _INTEGRATED_GPU):
            name = registry.ggml_backend_dev_name(device).decode()
            found[name] = GPU(device, kind == _INTEGRATED_GPU)
    return found


def choose_device(asked: DeviceName, present: Mapping[str, GPU], *, strict: bool) -> Device:
    """Return the device of a session, given the GPUs that are present.

    Its GPUs are of one backend, since two may list one card, and none is integrated where another
    fits. A missing device becomes the CPU, with a notice on the log, or with `strict` an error.
    `mlx` is another name of Apple's GPU; llama.cpp reaches it through Metal.

    Raises:
        EngineUnavailableError: `strict`, and the device isn't there.
    """
    if asked == "cpu":
        return Device("cpu", offloads=False)
    backend = "metal" if asked == "mlx" else asked
    begin = "" if backend == "auto" else _BACKENDS[backend]
    fitting = [name for name in present if name.lower().startswith(begin)]
    fitting = [name for name in fitting if not present[name].is_integrated] or fitting
    if fitting:
        own = fitting[0].rstrip(digits)
        return Device(fitting[0], True, tuple(n for n in fitting if n.rstrip(digits) == own))
    if backend == "auto":
        return Device("cpu", offloads=False)
    there = ", ".join(present) or "no GPU"
    problem = (
        f"device={asked!r} isn't there: this build of llama-cpp-python sees {there}; for it, "
        f'install with CMAKE_ARGS="{_BUILDS[backend]}" on a machine that has one'
    )
    if strict:
        raise EngineUnavailableError(problem)
    _log.warning("%s; running on the CPU (strict_device=True makes this an error)", problem)
    return Device("cpu", offloads=False, fallback=problem)


def _load_registry() -> Registry:
    # llama-cpp-python 0.3.36 wraps none of these calls; this is the library that it has loaded.
    library = cast(Any, import_module("llama_cpp._ggml")).libggml
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    library.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    library.ggml_backend_dev_get.restype = ctypes.c_void_p
    for name, result in (("name", ctypes.c_char_p), ("type", ctypes.c_int)):
        function = getattr(library, f"ggml_backend_dev_{name}")
        function.argtypes = [ctypes.c_void_p]
        function.restype = result
    return cast(Registry, library)
