"""The checkpoint folder as transformers reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from tiny_model.chat_template import CHAT_TEMPLATE
from tiny_model.llama import LlamaShape, Weights
from tiny_model.tokenizer import BOS, EOS, PAD, SPECIAL_TOKENS

WEIGHTS_FILE = "model.safetensors"
TOKENIZER_FILE = "tokenizer.json"


def write_checkpoint(
    folder: Path, tokenizer: Tokenizer, weights: Weights, shape: LlamaShape
) -> None:
    """Weights, configuration, tokenizer and chat template."""
    ordered = {name: weights[name].contiguous() for name in shape.tensors()}
    save_file(ordered, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / WEIGHTS_FILE).chmod(0o644)
    tokenizer.save(str(folder / TOKENIZER_FILE))
    ids = {
        "bos_token_id": tokenizer.token_to_id(BOS),
        "eos_token_id": tokenizer.token_to_id(EOS),
        "pad_token_id": tokenizer.token_to_id(PAD),
    }
    _write_json(folder / "config.json", _config(shape) | ids)
    _write_json(folder / "generation_config.json", {**ids, "do_sample": False})
    names = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    others = {"additional_special_tokens": list(SPECIAL_TOKENS[3:])}
    _write_json(folder / "special_tokens_map.json", names | others)
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(tokenizer, shape) | names)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def read_weights(folder: Path) -> Weights:
    """The float32 weights of the folder."""
    return load_file(folder / WEIGHTS_FILE)


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of the folder."""
    return Tokenizer.from_file(str(folder / TOKENIZER_FILE))


def _config(shape: LlamaShape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "rms_norm_eps": shape.norm_eps,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "torch_dtype": "float32",
        "use_cache": True,
    }


def _tokenizer_config(tokenizer: Tokenizer, shape: LlamaShape) -> dict[str, Any]:
    added = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for token in SPECIAL_TOKENS
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": added,
        "additional_special_tokens": list(SPECIAL_TOKENS[3:]),
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": shape.context,
        "padding_side": "left",
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
