"""The faster product of float32 matrices: the same numbers, and only where it is the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import linear

from evalution_transformers.linear import (
    FastLinear,
    find_product,
    has_slow_linear,
    is_amd_with_avx512,
)
from evalution_transformers.upstream import CausalModel

PRODUCT = find_product()
SIZES = st.integers(1, 70)


class Subclass(torch.Tensor):
    """A weight that computes for itself, as those of quantised layers do."""


def count_products(*arguments: torch.Tensor) -> int:
    """Return how many linear layers of these arguments the faster product takes."""
    taken: list[object] = []

    def product(
        given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        taken.append(weight)
        return given @ weight.T

    with torch.no_grad(), FastLinear(product):
        linear(*arguments)
    return len(taken)


@pytest.mark.skipif(PRODUCT is None, reason="this PyTorch has no oneDNN")
@given(rows=SIZES, wide=SIZES, high=SIZES, biased=st.booleans(), turned=st.booleans())
def test_fast_product_equals_the_plain_one(
    rows: int, wide: int, high: int, biased: bool, turned: bool
) -> None:
    assert PRODUCT is not None
    numbers = torch.Generator().manual_seed(rows * 71 + wide)
    given = torch.randn(2, wide, rows, generator=numbers).transpose(1, 2)
    weight = torch.randn(high, wide, generator=numbers)
    weight = weight.T.contiguous().T if turned else weight
    bias = torch.randn(high, generator=numbers) if biased else None
    with torch.no_grad():
        found = PRODUCT(given, weight, bias)
        right = linear(given.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-5)


def test_plain_float32_layers_take_the_fast_product() -> None:
    assert count_products(torch.ones(2, 3), torch.ones(4, 3)) == 1
    assert count_products(torch.ones(1, 2, 3), torch.nn.Parameter(torch.ones(4, 3))) == 1


@pytest.mark.parametrize(
    ("given", "weight"),
    [
        (torch.ones(1, 3), torch.ones(4, 3)),
        (torch.ones(0, 3), torch.ones(4, 3)),
        (torch.ones(2, 3).double(), torch.ones(4, 3).double()),
        (torch.ones(2, 3).bfloat16(), torch.ones(4, 3).bfloat16()),
        (torch.ones(2, 3), torch.ones(4, 3).as_subclass(Subclass)),
        (torch.ones(2, 3, device="meta"), torch.ones(4, 3, device="meta")),
    ],
    ids=["one row", "no row", "float64", "bfloat16", "subclass", "another device"],
)
def test_other_layers_run_as_they_would(given: torch.Tensor, weight: torch.Tensor) -> None:
    assert count_products(given, weight) == 0


def test_other_models_and_autocast_keep_the_library_of_pytorch() -> None:
    def model(dtype: torch.dtype, device: str = "cpu") -> CausalModel:
        return cast("Any", SimpleNamespace(dtype=dtype, device=torch.device(device)))

    plain = model(torch.float32)
    assert has_slow_linear(plain) == is_amd_with_avx512()
    assert not has_slow_linear(model(torch.bfloat16))
    assert not has_slow_linear(model(torch.float32, "meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not has_slow_linear(plain)
