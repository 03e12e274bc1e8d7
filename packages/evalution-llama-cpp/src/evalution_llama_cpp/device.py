"""Which devices the installed build of llama.cpp has, and which one a session gets."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol, cast

from evalution_core import EngineUnavailableError
from evalution_llama_cpp.library import Library

DeviceName = Literal["auto", "cpu", "cuda", "metal", "mlx", "vulkan"]

_log = logging.getLogger("evalution_llama_cpp")

_BACKENDS = {"cuda": ("cuda",), "metal": ("mtl", "metal"), "vulkan": ("vulkan",)}
"""How the names of ggml's devices begin, in lower case: `CUDA0`, `MTL0`, `Vulkan0`."""
_BUILDS = {"cuda": "-DGGML_CUDA=on", "metal": "-DGGML_METAL=on", "vulkan": "-DGGML_VULKAN=on"}
_GPU, _INTEGRATED_GPU = 1, 2


class Registry(Protocol):
    """ggml's device registry."""

    ggml_backend_dev_count: Any
    ggml_backend_dev_get: Any
    ggml_backend_dev_name: Any
    ggml_backend_dev_type: Any


@dataclass(frozen=True, slots=True)
class Device:
    """What was chosen: `offloads` says whether layers go to a GPU.

    `gpus` are all that the model may be spread over, by ggml's names. `fallback` says why it isn't
    what was asked for; None where it is.
    """

    name: str
    offloads: bool
    gpus: tuple[str, ...] = ()
    fallback: str | None = None


def gpus_of(library: Library) -> dict[str, int]:
    """The GPUs that this build can run on and that are here: handles by ggml's names (`CUDA0`)."""
    if not library.llama_supports_gpu_offload():
        return {}
    registry = _registry()
    found: dict[str, int] = {}
    for index in range(registry.ggml_backend_dev_count()):
        device = registry.ggml_backend_dev_get(index)
        if registry.ggml_backend_dev_type(device) in (_GPU, _INTEGRATED_GPU):
            found[registry.ggml_backend_dev_name(device).decode()] = device
    return found


def resolve_device(asked: DeviceName, present: Iterable[str], *, strict: bool) -> Device:
    """The device that a session gets, given the GPUs that are present.

    What isn't there becomes the CPU, with a notice on the log, or with `strict` an error. `mlx`
    is what Apple's GPU is called elsewhere; llama.cpp reaches it through Metal.

    Raises:
        EngineUnavailableError: `strict`, and the device isn't there.
    """
    if asked == "cpu":
        return Device("cpu", offloads=False)
    names = tuple(present)
    if asked == "auto":
        return Device(names[0], True, names) if names else Device("cpu", offloads=False)
    backend = "metal" if asked == "mlx" else asked
    fitting = tuple(name for name in names if name.lower().startswith(_BACKENDS[backend]))
    if fitting:
        return Device(fitting[0], True, fitting)
    there = ", ".join(names) or "no GPU"
    problem = (
        f"device={asked!r} isn't there: this build of llama-cpp-python sees {there}; for it, "
        f'install with CMAKE_ARGS="{_BUILDS[backend]}" on a machine that has one'
    )
    if strict:
        raise EngineUnavailableError(problem)
    _log.warning("%s; running on the CPU (strict_device=True makes this an error)", problem)
    return Device("cpu", offloads=False, fallback=problem)


def _registry() -> Registry:
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
