"""The precision that a checkpoint declares, or is stored in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalution_core import ConfigurationError
from evalution_enginekit.model_source import find_checkpoint_dtype
from evalution_enginekit.serving_session import choose_serving_dtype


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Weights in float16 behind whole numbers, in the first of two files."""
    entries = {
        name: {"dtype": name, "shape": [], "data_offsets": [0, 0]} for name in ("I32", "F16")
    }
    for name, header in (("b", {"w": {"dtype": "F32"}}), ("a", {"__metadata__": {}, **entries})):
        head = json.dumps(header).encode()
        content = len(head).to_bytes(8, "little") + head
        (tmp_path / f"{name}.safetensors").write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "torch.float32"}, "float32"),
        ({"dtype": None, "torch_dtype": "float64", "text_config": {}}, "float64"),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({"dtype": "float32", "text_config": {"dtype": "bfloat16"}}, "float32"),
        ({}, "float16"),
    ],
)
def test_declared_precision_goes_before_the_stored_one(
    config: dict[str, Any], dtype: str, folder: Path
) -> None:
    assert find_checkpoint_dtype(config, folder) == dtype


def test_precision_is_unknown_without_declaration_and_weights(tmp_path: Path) -> None:
    assert find_checkpoint_dtype({}, None) is None
    assert find_checkpoint_dtype({}, tmp_path) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\nsize 3\n", "a pointer of Git LFS in place"),
        (b"", "cut short or no safetensors file: it has 0 bytes and no header that can be read"),
        (b"\x10" + bytes(7) + b'{"a":', "it has 13 bytes and no header that can be read; copy it"),
        (b"\x05" + bytes(7) + b'{"a":', "cut short or no safetensors file"),
        (b"\x02" + bytes(7) + b"[]", "cut short or no safetensors file"),
        (b"\x07" + bytes(7) + b'{"a":1}', "cut short or no safetensors file"),
        (b"\x04" + bytes(7) + b"\xff" * 4, "cut short or no safetensors file"),
        (bytes(4) + b"\x10" + bytes(3) + b"{", "cut short or no safetensors file"),
    ],
)
def test_weights_without_a_header_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message) as refused:
        find_checkpoint_dtype({}, tmp_path)
    assert str(refused.value).startswith(f"{file} is ")
    assert find_checkpoint_dtype({"dtype": "float32"}, tmp_path) == "float32"


def test_serving_runtime_is_asked_for_the_checkpoints_precision(folder: Path) -> None:
    assert choose_serving_dtype("auto", {"dtype": "float32"}, None) == "float32"
    assert choose_serving_dtype("bfloat16", {"dtype": "float32"}, None) == "bfloat16"
    assert choose_serving_dtype("auto", {}, folder) == "float16"
    assert choose_serving_dtype("auto", {}, None) == "auto"
    quantized = {"dtype": "float32", "quantization_config": {"quant_method": "gptq"}}
    assert choose_serving_dtype("auto", quantized, None) == "auto"
