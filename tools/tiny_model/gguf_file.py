"""The GGUF files: the same weights and tokenizer for llama.cpp and tinygrad."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, LlamaFileType, TokenType
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tiny_model.chat_template import CHAT_TEMPLATE
from tiny_model.llama import LlamaShape, Weights
from tiny_model.tokenizer import BOS, EOS, PAD, SPECIAL_TOKENS, vocabulary_and_merges

Array = NDArray[np.float32]
FILE_TYPES = {
    GGMLQuantizationType.F32: LlamaFileType.ALL_F32,
    GGMLQuantizationType.Q8_0: LlamaFileType.MOSTLY_Q8_0,
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    path: Path,
    tokenizer: Tokenizer,
    weights: Weights,
    shape: LlamaShape,
    kind: GGMLQuantizationType,
) -> None:
    """A GGUF whose matrices are of `kind`; norms stay float32."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Evalution tiny")
    writer.add_license("apache-2.0")
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_shape(writer, shape)
    _add_tokenizer(writer, tokenizer, shape.vocabulary)
    for name, tensor in gguf_tensors(weights, shape):
        if tensor.ndim == 1 or kind == GGMLQuantizationType.F32:
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(weights: Weights, shape: LlamaShape) -> Iterator[tuple[str, Array]]:
    """The weights under their GGUF names, query and key rows in llama.cpp's rotary order."""
    for name in shape.tensors():
        tensor: Array = weights[name].numpy()
        if name.endswith("q_proj.weight"):
            tensor = _interleaved(tensor, shape.heads)
        elif name.endswith("k_proj.weight"):
            tensor = _interleaved(tensor, shape.kv_heads)
        yield _gguf_name(name), np.ascontiguousarray(tensor)


def read_gguf_tensors(path: Path) -> dict[str, Array]:
    """The tensors of a file, dequantised."""
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(path).tensors
    }


def _interleaved(tensor: Array, heads: int) -> Array:
    # transformers pairs dimension i with i + d/2, llama.cpp pairs 2i with 2i + 1.
    rows, columns = tensor.shape
    halves = tensor.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def _gguf_name(name: str) -> str:
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in whole:
        return f"{whole[stem]}.weight"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{_LAYER_NAMES[part]}.weight"


def _add_shape(writer: gguf.GGUFWriter, shape: LlamaShape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_vocab_size(shape.vocabulary)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer, rows: int) -> None:
    tokens, types = [], []
    for index in range(rows):
        token = tokenizer.id_to_token(index)
        if token is None:
            tokens.append(f"[PAD{index}]")
            types.append(TokenType.UNUSED)
        else:
            tokens.append(token)
            types.append(TokenType.CONTROL if token in SPECIAL_TOKENS else TokenType.NORMAL)
    _, merges = vocabulary_and_merges(tokenizer)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(tokenizer.token_to_id(BOS))
    writer.add_eos_token_id(tokenizer.token_to_id(EOS))
    writer.add_pad_token_id(tokenizer.token_to_id(PAD))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
