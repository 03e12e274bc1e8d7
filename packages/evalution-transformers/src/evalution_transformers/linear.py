"""Linear layers in float32 on AMD processors with AVX-512: by oneDNN, which PyTorch brings too.

PyTorch computes products of float32 matrices with MKL, whose kernels for AMD processors stop at
AVX2 (https://github.com/pytorch/builder/issues/504). It hands bfloat16 to oneDNN, which takes the
widest vectors of any processor. Once PyTorch does that for float32 too, or MKL uses AVX-512
everywhere, this module can go. docs/performance.md has the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from evalution_transformers.upstream import CausalModel

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
_PROCESSOR = Path("/proc/cpuinfo")


def use_fast_linear(model: CausalModel) -> AbstractContextManager[object]:
    """Return a context for a forward pass without gradients, which the faster product lacks."""
    product = find_product() if has_slow_linear(model) else None
    return nullcontext() if product is None else FastLinear(product)


def has_slow_linear(model: CausalModel) -> bool:
    """Return whether MKL computes the model's linear layers with half of the vectors' width."""
    is_float32 = model.device.type == "cpu" and model.dtype == torch.float32
    return is_float32 and not torch.is_autocast_enabled("cpu") and is_amd_with_avx512()


@cache
def is_amd_with_avx512() -> bool:
    """Return whether the processor is AMD's, with vectors of 512 bits."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not _PROCESSOR.is_file():
        return False
    return "AuthenticAMD" in _PROCESSOR.read_text("utf-8", "replace")


@cache
def find_product() -> Product | None:
    """Return oneDNN's product of an input, a weight and a bias, if this PyTorch has it.

    The operator belongs to PyTorch's compiler and is not documented: it is tried on small numbers.
    """
    try:
        operator: Any = torch.ops.mkldnn._linear_pointwise

        def multiply(given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return cast("Tensor", operator(given, weight, bias, "none", [], ""))

        numbers = torch.arange(6.0)
        found = multiply(numbers.view(2, 3), numbers.view(2, 3), numbers[:2])
    except (AttributeError, RuntimeError, NotImplementedError):
        return None
    expected = torch.tensor([[5.0, 15.0], [14.0, 51.0]])
    return multiply if torch.equal(found, expected) else None


class FastLinear(TorchFunctionMode):
    """Replaces `torch.nn.functional.linear` where `product` computes the same.

    That is for plain float32 tensors of the processor. Everything else runs as it would.
    """

    def __init__(self, product: Product):
        super().__init__()
        self._product = product

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.nn.functional.linear and not kwargs and _can_multiply(*args):
            return self._product(args[0], args[1], args[2] if len(args) > 2 else None)
        return func(*args, **(kwargs or {}))


def _can_multiply(given: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Return whether these are plain tensors, and the input is neither empty nor a single row."""
    tensors = (given, weight) if bias is None else (given, weight, bias)
    return (
        given.numel() > given.shape[-1]
        and all(type(tensor) in (Tensor, Parameter) for tensor in tensors)
        and all(tensor.dtype == torch.float32 for tensor in tensors)
        and all(tensor.device.type == "cpu" for tensor in tensors)
        and all(tensor.layout == torch.strided for tensor in tensors)
    )
