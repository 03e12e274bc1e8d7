"""Small GGUF files with random weights, of kinds that the tiny model isn't."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

WIDTH, INNER, LAYERS, HEADS, KV_HEADS, HEAD, VOCABULARY = 64, 128, 3, 4, 2, 16, 320
STATE, CHANNELS, KERNEL, RANK = 16, 128, 4, 4
EXPERTS, USED = 4, 2
WINDOW = 8

ATTENTION: dict[str, tuple[int, ...]] = {
    "attn_norm": (WIDTH,),
    "attn_q": (HEADS * HEAD, WIDTH),
    "attn_k": (KV_HEADS * HEAD, WIDTH),
    "attn_v": (KV_HEADS * HEAD, WIDTH),
    "attn_output": (WIDTH, HEADS * HEAD),
    "ffn_norm": (WIDTH,),
    "ffn_gate": (INNER, WIDTH),
    "ffn_up": (INNER, WIDTH),
    "ffn_down": (WIDTH, INNER),
}
BIASES = {
    "attn_q.bias": (HEADS * HEAD,),
    "attn_k.bias": (KV_HEADS * HEAD,),
    "attn_v.bias": (KV_HEADS * HEAD,),
}
OF_HEADS = {"attn_q_norm": (HEAD,), "attn_k_norm": (HEAD,)}
UNGROUPED = {
    "attn_k": (HEADS * HEAD, WIDTH),
    "attn_v": (HEADS * HEAD, WIDTH),
    "attn_q_norm": (HEADS * HEAD,),
    "attn_k_norm": (HEADS * HEAD,),
}
MIXTURE = {name: shape for name, shape in ATTENTION.items() if not name.startswith("ffn")} | {
    "ffn_norm": (WIDTH,),
    "ffn_gate_inp": (EXPERTS, WIDTH),
    "ffn_gate_exps": (EXPERTS, INNER, WIDTH),
    "ffn_up_exps": (EXPERTS, INNER, WIDTH),
    "ffn_down_exps": (EXPERTS, WIDTH, INNER),
}
AROUND = {"post_attention_norm": (WIDTH,), "post_ffw_norm": (WIDTH,)}
LAYER_TENSORS = {
    "llama": ATTENTION,
    "qwen2": ATTENTION | BIASES,
    "qwen3": ATTENTION | OF_HEADS,
    "qwen3moe": MIXTURE | OF_HEADS,
    "olmoe": MIXTURE | UNGROUPED,
    "gemma2": ATTENTION | AROUND,
    "gemma-embedding": ATTENTION | AROUND | OF_HEADS,
    "mamba": {
        "attn_norm": (WIDTH,),
        "ssm_in": (2 * CHANNELS, WIDTH),
        "ssm_conv1d": (CHANNELS, KERNEL),
        "ssm_conv1d.bias": (CHANNELS,),
        "ssm_x": (RANK + 2 * STATE, CHANNELS),
        "ssm_dt": (CHANNELS, RANK),
        "ssm_dt.bias": (CHANNELS,),
        "ssm_a.": (CHANNELS, STATE),
        "ssm_d.": (CHANNELS,),
        "ssm_out": (WIDTH, CHANNELS),
    },
}
"""Shapes by name, `.weight` left out; a dot at the end stands for a name without it."""
UNTIED = ("olmoe", "qwen2")
"""Those whose output isn't the embedding's weights."""
_PLAIN: dict[str, Any] = {
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.dimension_count": HEAD,
    "rope.freq_base": 10000.0,
}
_SPARSE = {
    **_PLAIN,
    "expert_count": EXPERTS,
    "expert_used_count": USED,
    "expert_feed_forward_length": INNER,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "llama": _PLAIN,
    "qwen2": _PLAIN,
    "qwen3": {**_PLAIN, "rope.freq_base": 1e6},
    "qwen3moe": _SPARSE,
    "olmoe": {**_SPARSE, "attention.head_count_kv": HEADS},
    "gemma2": {
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.sliding_window": WINDOW,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "mamba": {
        "attention.layer_norm_rms_epsilon": 1e-5,
        "ssm.conv_kernel": KERNEL,
        "ssm.inner_size": CHANNELS,
        "ssm.state_size": STATE,
        "ssm.time_step_rank": RANK,
    },
}
SETTINGS["gemma-embedding"] = SETTINGS["gemma2"]

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", *"abcdefghijklmnopqrstuvwxyz.", "at", "▁c", "▁cat"]


def sentence_piece(pieces: list[str]) -> dict[str, Any]:
    """A vocabulary of these tokens, filled up with unused ones."""
    tokens = ["<unk>", "<s>", "</s>", *pieces]
    kinds = [2, 3, 3, *(6 if piece in BYTES else 1 for piece in pieces)]
    rest = range(len(tokens), VOCABULARY)
    return {
        "model": "llama",
        "tokens": [*tokens, *(f"[{at}]" for at in rest)],
        "token_type": [*kinds, *(5 for _ in rest)],
        "scores": [-float(at) for at in range(VOCABULARY)],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }


VOCABULARIES: dict[str, dict[str, Any]] = {
    "whole": sentence_piece([*BYTES, *PIECES]),
    "without bytes": sentence_piece(PIECES),
    "none": {"model": "none"},
    # Of the last two only the first is a control token, which llama.cpp makes of the other too.
    "ends of turn": sentence_piece([*BYTES, *PIECES, "<|im_end|>", "<|end|>"]),
}
_KINDS = VOCABULARIES["ends of turn"]["token_type"]
_KINDS[3 + len(BYTES) + len(PIECES)] = 3


@pytest.fixture
def random_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes a model of an architecture; its weights have a standard deviation of `deviation`.

    None: what keeps the size of a matrix's input.
    """

    def write(
        architecture: str = "llama",
        *,
        name: str = "random.gguf",
        vocabulary: str = "whole",
        deviation: float | None = None,
        settings: dict[str, Any] | None = None,
        tensors_a_part: int = 0,
    ) -> Path:
        gguf = pytest.importorskip("gguf", reason="gguf is not installed")
        path = tmp_path / name
        writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors_a_part)
        entries = {
            "context_length": 512,
            "embedding_length": WIDTH,
            "block_count": LAYERS,
            "feed_forward_length": INNER,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
            "vocab_size": VOCABULARY,
            **SETTINGS[architecture],
            **(settings or {}),
        }
        metadata = {f"{architecture}.{key}": value for key, value in entries.items()}
        for key, value in VOCABULARIES[vocabulary].items():
            metadata[f"tokenizer.ggml.{key}"] = value
        for key, value in metadata.items():
            writer.add_key_value(key, value, *_types_of(gguf, value))
        for tensor, shape in _shapes(architecture).items():
            writer.add_tensor(tensor, _drawn(tensor, shape, deviation))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path if path.is_file() else next(tmp_path.glob(f"{path.stem}-00001-of-*.gguf"))

    return write


def _shapes(architecture: str) -> dict[str, tuple[int, ...]]:
    whole: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCABULARY, WIDTH),
        "output_norm.weight": (WIDTH,),
    }
    if architecture in UNTIED:
        whole["output.weight"] = (VOCABULARY, WIDTH)
    for layer in range(LAYERS):
        for name, shape in LAYER_TENSORS[architecture].items():
            full = name.removesuffix(".") if "." in name else f"{name}.weight"
            whole[f"blk.{layer}.{full}"] = shape
    return whole


def _drawn(name: str, shape: tuple[int, ...], deviation: float | None) -> Any:
    chance = np.random.default_rng([*name.encode()])
    values = chance.standard_normal(shape, np.float32)
    if len(shape) == 1:
        # Gains are near 1, and what is added is small.
        return values * np.float32(0.1) + np.float32(not name.endswith("bias"))
    values *= np.float32(deviation or shape[-1] ** -0.5)
    return -np.abs(values) if name.endswith("ssm_a") else values


def _types_of(gguf: Any, value: Any) -> tuple[Any, Any]:
    kinds = gguf.GGUFValueType
    names = {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, str: kinds.STRING}
    if isinstance(value, list):
        inner = kinds.INT32 if isinstance(value[0], int) else names[type(value[0])]
        return kinds.ARRAY, inner
    return names[type(value)], None
