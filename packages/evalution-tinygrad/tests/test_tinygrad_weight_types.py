"""Types of weights that tinygrad reads on the renderer that needs no compiler."""

# tinygrad leaves most of its functions without types, and doesn't mark what it exports.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinygrad", reason="tinygrad is not installed")

from tinygrad import Tensor
from tinygrad.llm.gguf import ggml_data_to_tensor

from evalution_core import ConfigurationError
from evalution_core.builtins import builtin_path
from evalution_enginekit.gguf.file import GGUFFile, GGUFTensor, read_gguf
from evalution_tinygrad.device import open_device
from evalution_tinygrad.load import check_weight_types

gguf: Any = pytest.importorskip("gguf", reason="gguf is not installed")

_TINY = read_gguf(builtin_path("builtin:tiny", "gguf"))
_READ = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ2_S", "IQ3_S", "BF16"]
_NOT_READ = ["Q2_K", "Q3_K", "IQ1_S", "IQ2_XXS", "IQ4_NL", "TQ1_0"]
_NOT_ON_X86 = ["IQ3_XXS", "IQ4_XS", "MXFP4"]


def _with(type_name: str) -> GGUFFile:
    return replace(_TINY, tensors=(*_TINY.tensors, GGUFTensor("t", (256,), type_name, 0, None)))


def _values(type_name: str) -> tuple[int, Any]:
    """Return the number of values and random bytes for them, with scales that are numbers."""
    number = gguf.GGMLQuantizationType[type_name]
    count, size = gguf.GGML_QUANT_SIZES[number]
    chance = np.random.default_rng(3)
    blocks = chance.integers(0, 256, (2048 // count, size), dtype=np.uint8)
    scales = chance.normal(0, 0.1, (2, len(blocks))).astype(np.float16).view(np.uint8)
    places = {"Q6_K": (-2,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}
    for place_of, scale in zip(places.get(type_name, (0,)), scales, strict=False):
        blocks[:, place_of : place_of + 2 or None] = scale.reshape(-1, 2)
    if type_name == "BF16":
        halves = chance.normal(0, 1, 2048).astype(np.float32).view(np.uint16)[1::2]
        blocks = np.ascontiguousarray(halves).view(np.uint8)
    return blocks.size // size * count, blocks.reshape(-1)


@pytest.mark.parametrize("type_name", _READ)
def test_values_are_those_of_gguf(type_name: str) -> None:
    check_weight_types(_with(type_name), "CPU:X86")
    number = gguf.GGMLQuantizationType[type_name]
    count, data = _values(type_name)
    with open_device("cpu", None, None).activate():
        found = ggml_data_to_tensor(Tensor(data), count, number.value).cast("float32").numpy()
    expected = gguf.quants.dequantize(data.reshape(1, -1), number)
    np.testing.assert_allclose(found.reshape(-1), expected.reshape(-1), rtol=1e-6)


@pytest.mark.parametrize("type_name", _NOT_READ)
def test_a_type_that_tinygrad_lacks_is_refused(type_name: str) -> None:
    count, data = _values(type_name)
    number = gguf.GGMLQuantizationType[type_name].value
    with (
        open_device("cpu", None, None).activate(),
        pytest.raises(ValueError, match="not supported"),
    ):
        ggml_data_to_tensor(Tensor(data), count, number)
    expected = rf"weights of type {type_name}; tinygrad reads BF16, .*another quantisation"
    with pytest.raises(ConfigurationError, match=expected):
        check_weight_types(_with(type_name), "CUDA")


@pytest.mark.parametrize("type_name", _NOT_ON_X86)
def test_a_type_beyond_the_assembler_is_refused_there_alone(type_name: str) -> None:
    expected = rf"of type {type_name}, which tinygrad's assembler .*device='cpu:clangjit'"
    with pytest.raises(ConfigurationError, match=expected):
        check_weight_types(_with(type_name), "CPU:X86")
    for target in ("CUDA", "CPU:CLANGJIT"):
        check_weight_types(_with(type_name), target)
