from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from evalution_core.errors import ConfigurationError
from evalution_reference.llama import Llama
from evalution_reference.llama_config import RopeScaling, read_config
from evalution_reference.load import load_checkpoint

CheckpointWriter = Callable[..., Path]

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def refused(folder: Path, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_checkpoint(folder)


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Apply `change` to the tensors of the only weights file."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def test_config_and_weights_come_back_as_written(write_checkpoint: CheckpointWriter) -> None:
    folder = write_checkpoint(dtype="float32")
    config, weights = load_checkpoint(folder)
    assert (config.vocab_size, config.hidden_size, config.head_dim) == (97, 32, 8)
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)
    assert (config.rms_norm_eps, config.rope_theta, config.rope_scaling) == (1e-5, 10000.0, None)
    for name, tensor in load_file(folder / "model.safetensors").items():
        np.testing.assert_array_equal(weights[name], tensor)
        assert weights[name].dtype == np.float32


def test_shards_give_the_same_as_one_file(write_checkpoint: CheckpointWriter) -> None:
    _, single = load_checkpoint(write_checkpoint(name="single"))
    _, sharded = load_checkpoint(write_checkpoint(name="sharded", shards=3))
    assert single.keys() == sharded.keys()
    for name, tensor in single.items():
        np.testing.assert_array_equal(sharded[name], tensor)


def test_half_precision_weights_load_exactly(write_checkpoint: CheckpointWriter) -> None:
    folder = write_checkpoint(dtype="float16")
    weights = load_checkpoint(folder)[1]
    stored = load_file(folder / "model.safetensors")
    assert all(np.array_equal(weights[name], stored[name]) for name in stored)


def test_bfloat16_weights_load_exactly(write_checkpoint: CheckpointWriter) -> None:
    folder = write_checkpoint(dtype="float32")
    path = folder / "model.safetensors"
    tensors = {name: t.view(np.uint32) >> 16 for name, t in load_file(path).items()}
    # Written by hand, since the numpy side of safetensors has no bfloat16.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, upper in tensors.items():
        data = upper.astype("<u2").tobytes()
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": "BF16", "shape": list(upper.shape), "data_offsets": offsets}
        body += data
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + body)
    config, weights = load_checkpoint(folder)
    for name, upper in tensors.items():
        assert weights[name].dtype == np.float32
        np.testing.assert_array_equal(weights[name].view(np.uint32), upper << 16)
    model = Llama(config, weights)
    assert model.hidden_states(np.array([1, 2]), model.new_cache()).shape == (2, 32)


@pytest.mark.parametrize(
    ("family", "entries", "traits"),
    [
        ("llama", {}, (False, False, False)),
        ("llama", {"attention_bias": True}, (True, True, False)),
        ("mistral", {"sliding_window": 512}, (False, False, False)),
        ("qwen2", {}, (True, False, False)),
        ("qwen3", {}, (False, False, True)),
    ],
)
def test_families_differ_in_biases_and_norms(
    write_checkpoint: CheckpointWriter,
    family: str,
    entries: dict[str, Any],
    traits: tuple[bool, ...],
) -> None:
    config = read_config(write_checkpoint(family, **entries))
    assert (config.attention_bias, config.attention_output_bias, config.qk_norm) == traits


def test_absent_entries_are_the_familys_default(write_checkpoint: CheckpointWriter) -> None:
    llama = read_config(write_checkpoint(name="a", num_key_value_heads=None, rms_norm_eps=None))
    assert (llama.num_key_value_heads, llama.rms_norm_eps, llama.head_dim) == (4, 1e-6, 8)
    assert read_config(write_checkpoint("qwen3", name="b")).head_dim == 128


@pytest.mark.parametrize(
    ("entries", "theta", "scaling"),
    [
        ({"rope_theta": 500}, 500.0, None),
        ({"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}, 500.0, None),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}},
            5e5,
            RopeScaling("linear", 2.0),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": LLAMA3},
            5e5,
            RopeScaling("llama3", 8.0, 1.0, 4.0, 256),
        ),
        (
            {"rope_parameters": {"rope_theta": 5e5, **LLAMA3}},
            5e5,
            RopeScaling("llama3", 8.0, 1.0, 4.0, 256),
        ),
    ],
)
def test_rope_is_read_in_both_spellings(
    write_checkpoint: CheckpointWriter,
    entries: dict[str, Any],
    theta: float,
    scaling: RopeScaling | None,
) -> None:
    config = read_config(write_checkpoint(**entries))
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model_type": "gpt2"}, "'gpt2'.* runs llama, mistral, qwen2, qwen3"),
        ({"hidden_size": "32"}, "positive whole number as 'hidden_size', has '32'"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers', has 0"),
        ({"rms_norm_eps": -1.0}, "'rms_norm_eps', has -1.0"),
        ({"num_key_value_heads": 3}, "3 key-value heads"),
        ({"head_dim": 7}, "head_dim 7"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized.*unquantized checkpoint"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope type 'yarn'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'factor', has None"),
        ({"rope_scaling": [1]}, "object as its rope parameters"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "low_freq_factor < high"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_a_config_that_asks_for_another_computation_is_refused(
    write_checkpoint: CheckpointWriter, entries: dict[str, Any], message: str
) -> None:
    folder = write_checkpoint()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **entries}))
    refused(folder, f"config.json'.*{message}")


@pytest.mark.parametrize(
    ("family", "entries", "runs"),
    [
        ("mistral", {"sliding_window": None}, True),
        ("mistral", {"sliding_window": 512}, True),
        ("mistral", {"sliding_window": 128}, False),
        ("qwen2", {"sliding_window": 128, "use_sliding_window": False}, True),
        ("qwen2", {"sliding_window": 128, "use_sliding_window": True}, True),
        (
            "qwen2",
            {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 1},
            False,
        ),
        ("qwen3", {"sliding_window": 128, "layer_types": ["full_attention"] * 2}, True),
        (
            "qwen3",
            {"sliding_window": 128, "layer_types": ["full_attention", "sliding_attention"]},
            False,
        ),
    ],
)
def test_a_sliding_window_is_refused_where_it_hides_a_position(
    write_checkpoint: CheckpointWriter, family: str, entries: dict[str, Any], runs: bool
) -> None:
    folder = write_checkpoint(family, sliding_window=512)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **entries}))
    if runs:
        assert read_config(folder).num_hidden_layers == 2
    else:
        refused(folder, "sliding window of 128 tokens")


def test_missing_folder_and_files_are_named(
    tmp_path: Path, write_checkpoint: CheckpointWriter
) -> None:
    refused(tmp_path / "nowhere", "folder '.*nowhere' does not exist")
    folder = write_checkpoint(name="a")
    (folder / "model.safetensors").unlink()
    refused(folder, "neither 'model.safetensors' nor .* converted to safetensors")
    (folder / "config.json").unlink()
    refused(folder, "config.json' does not exist")
    folder = write_checkpoint(name="b", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused(folder, "model-00002-of-00002.safetensors' does not exist")


@pytest.mark.parametrize("content", ["{", "[1]", "\udcff"])
def test_a_broken_config_is_named(write_checkpoint: CheckpointWriter, content: str) -> None:
    folder = write_checkpoint()
    (folder / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    refused(folder, "config.json'.*JSON")


@pytest.mark.parametrize("kept", [0, 4, 40, -1])
def test_a_truncated_weights_file_is_named(write_checkpoint: CheckpointWriter, kept: int) -> None:
    path = write_checkpoint() / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    refused(path.parent, "model.safetensors' is truncated or not a safetensors file")


@pytest.mark.parametrize(
    "content",
    ['{"weight_map": {"a": "../model.safetensors"}}', '{"metadata": {}}', "[]", "no json"],
)
def test_a_bad_index_is_named(write_checkpoint: CheckpointWriter, content: str) -> None:
    folder = write_checkpoint(shards=2)
    (folder / "model.safetensors.index.json").write_text(content)
    refused(folder, "index.json' (is not an index|points outside)")


def test_a_tensor_that_its_shard_lacks_is_named(write_checkpoint: CheckpointWriter) -> None:
    folder = write_checkpoint(shards=2)
    path = folder / "model-00001-of-00002.safetensors"
    held = load_file(path)
    name = sorted(held)[0]
    del held[name]
    save_file(held, path)
    refused(folder, f"tensor '{name}' is not in '.*model-00001-of-00002.safetensors'")


def test_a_missing_tensor_is_named(write_checkpoint: CheckpointWriter) -> None:
    folder = write_checkpoint(name="a")
    edit(folder, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    refused(folder, "lack 'model.layers.1.mlp.up_proj.weight'")
    folder = write_checkpoint(name="b")
    edit(folder, lambda weights: weights.pop("lm_head.weight"))
    refused(folder, "lack 'lm_head.weight'.*tie_word_embeddings")


def test_a_tensor_that_would_be_ignored_is_refused(write_checkpoint: CheckpointWriter) -> None:
    folder = write_checkpoint()
    edit(folder, lambda weights: weights.update({"model.rotary_emb.inv_freq": np.ones(4)}))
    load_checkpoint(folder)
    bias = {
        f"model.layers.{layer}.self_attn.{x}_proj.bias": np.ones(4)
        for layer in (0, 1)
        for x in "qkv"
    }
    edit(folder, lambda weights: weights.update(bias))
    refused(folder, "hold 'model.layers.0.self_attn.k_proj.bias', .* and 3 more, .* does not use")


def test_a_shape_unlike_the_config_is_refused(write_checkpoint: CheckpointWriter) -> None:
    folder = write_checkpoint()
    edit(folder, lambda weights: weights.update({"model.norm.weight": np.ones(31)}))
    refused(folder, r"'model.norm.weight' in '.*' has shape \(31,\), .* asks for \(32,\)")


def test_integer_weights_are_refused(write_checkpoint: CheckpointWriter) -> None:
    folder = write_checkpoint()
    edit(folder, lambda weights: weights.update({"model.norm.weight": np.ones(32, np.int8)}))
    refused(folder, "'model.norm.weight' .* stored as I8; .* quantized")


def test_a_stored_tied_head_must_be_the_embedding(write_checkpoint: CheckpointWriter) -> None:
    folder = write_checkpoint(tie_word_embeddings=True)
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    edit(folder, lambda weights: weights.update({"lm_head.weight": embedding.copy()}))
    assert "lm_head.weight" not in load_checkpoint(folder)[1]
    edit(folder, lambda weights: weights.update({"lm_head.weight": embedding + 1}))
    refused(folder, "'lm_head.weight' differs from 'model.embed_tokens.weight'")
