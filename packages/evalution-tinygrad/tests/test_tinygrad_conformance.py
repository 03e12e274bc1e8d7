"""The engine passes the whole conformance kit on the real runtime, with no gap."""

from __future__ import annotations

import atexit
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from evalution_conformance import EngineConformance
from evalution_core import Model
from evalution_core.builtins import builtin_path
from evalution_reference import Reference
from evalution_tinygrad import Tinygrad

pytest.importorskip("tinygrad", reason="tinygrad is not installed")
gguf: Any = pytest.importorskip("gguf", reason="gguf is not installed")

_MADE = TemporaryDirectory()
# Not at the module's end: tests that run in parallel may return to it.
atexit.register(_MADE.cleanup)
_Q8_0 = builtin_path("builtin:tiny", "gguf-q8_0")

_HF_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_WHOLE_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def _untemplated(folder: Path) -> Path:
    """The tiny model without its chat template: the key is there under another name."""
    file = folder / "untemplated.gguf"
    whole = builtin_path("builtin:tiny", "gguf").read_bytes()
    file.write_bytes(whole.replace(b"tokenizer.chat_template", b"tokenizer.none_template"))
    return file


def _dequantised(source: Path, folder: Path) -> Path:
    """The weights of a GGUF of the tiny model as a float32 folder for the reference engine."""
    tiny = builtin_path("builtin:tiny", "safetensors")
    for file in tiny.iterdir():
        if file.is_file() and file.suffix in (".json", ".jinja"):
            shutil.copy(file, folder)
    config = json.loads((tiny / "config.json").read_text("utf-8"))
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights: dict[str, Any] = {}
    for tensor in gguf.GGUFReader(source).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = tensor.name.split(".")[-2]
        if part in heads:
            # llama.cpp turns dimension 2i with 2i + 1, Transformers i with i + d / 2.
            pairs = values.reshape(heads[part], -1, 2, values.shape[1])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        weights[_hf_name(tensor.name)] = np.ascontiguousarray(values)
    save_file(weights, folder / "model.safetensors")
    return folder


def _hf_name(name: str) -> str:
    if name in _WHOLE_NAMES:
        return _WHOLE_NAMES[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{_HF_NAMES[part]}.weight"


_COMPILES_S = 240.0
"""For one check on a busy machine: each fresh session compiles again."""
_UNTEMPLATED = Model(str(_untemplated(Path(_MADE.name))))


class TestTinygradFloat32(EngineConformance):
    engine = Tinygrad(device="cpu")
    model = Model("builtin:tiny")
    untemplated = _UNTEMPLATED
    timeout = _COMPILES_S


class TestTinygradQuantised(EngineConformance):
    """The same weights as the reference, which runs them dequantised."""

    engine = Tinygrad(device="cpu")
    model = Model(str(_Q8_0))
    oracle = Reference(dtype="float64")
    oracle_model = Model(str(_dequantised(_Q8_0, Path(_MADE.name))))
    untemplated = _UNTEMPLATED
    timeout = _COMPILES_S
    # Only the weights differ: their numbers, and batches, whose kernels read them too.
    checks = frozenset(
        {
            "distributions",
            "scoring",
            "top_logprobs",
            "test_a_batch_answers_as_its_requests_alone",
            "test_completions_equal_the_reference",
            "test_rolling_equals_the_reference",
        }
    )
