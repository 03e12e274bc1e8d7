"""Stands in for SGLang's kernels, which are built for GPUs and can't be imported without one.

On a CPU without AMX, SGLang runs Llama models on PyTorch alone: it imports names from here and
calls none of them.
"""

from __future__ import annotations

from collections.abc import Callable


def __getattr__(name: str) -> Callable[..., None]:
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*_: object, **__: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in")

    return kernel
