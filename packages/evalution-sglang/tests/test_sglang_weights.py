"""A checkpoint that isn't whole is refused before SGLang makes up what it lacks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from evalution_core import ConfigurationError, Model
from evalution_core.builtins import builtin_path
from evalution_enginekit.serving_session import ServedModel, ServingSession
from evalution_sglang import SGLang

pytest.importorskip("sglang", reason="sglang is not installed")

from evalution_sglang.load import Runtime, check_weights
from evalution_sglang.runtime import import_sglang
from evalution_sglang.session import open_session

TINY = builtin_path("builtin:tiny", "safetensors")
SHARDS = {
    "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
    "model.layers.0.mlp.up_proj.weight": "model-00001-of-00002.safetensors",
    "model.layers.1.mlp.up_proj.weight": "model-00002-of-00002.safetensors",
}


def copied(folder: Path, **changes: Any) -> Path:
    """The tiny checkpoint with other values in its configuration."""
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder)
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, **changes}), "utf-8")
    return folder


def sharded(folder: Path, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    index = {"weight_map": SHARDS}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    for name in set(SHARDS.values()):
        (folder / name).touch()
    return folder


def test_complete_checkpoints_are_accepted(tmp_path: Path) -> None:
    check_weights(TINY)
    check_weights(sharded(tmp_path, text_config={"num_hidden_layers": 2}))


def test_other_formats_and_unknown_names_are_left_to_sglang(tmp_path: Path) -> None:
    check_weights(tmp_path)
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 9}', "utf-8")
    (tmp_path / "pytorch_model.bin").touch()
    check_weights(tmp_path)


def test_layer_without_weights_is_refused(tmp_path: Path) -> None:
    message = (
        r"lacks the weights of 5 of its 7 layers \(2, 3, 4, …\); its answers would be those of"
    )
    with pytest.raises(ConfigurationError, match=message):
        check_weights(copied(tmp_path, num_hidden_layers=7))
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    with pytest.raises(ConfigurationError, match=r"lacks the weights of 1 of its 3 layers \(2\)"):
        check_weights(sharded(tmp_path, num_hidden_layers=3))


def test_missing_file_of_the_index_is_refused(tmp_path: Path) -> None:
    folder = sharded(tmp_path, num_hidden_layers=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    message = (
        r"lacks 1 of the files that its index names \(model-00002-of-00002.safetensors\); copy"
    )
    with pytest.raises(ConfigurationError, match=message):
        check_weights(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors", b"x" * 40, "model.safetensors can't be read: .*; copy it again"),
        ("config.json", b"{", "config.json is not valid JSON: .*; copy it again"),
        ("model.safetensors.index.json", b"{}", "has no weight_map; copy it again"),
    ],
)
def test_damaged_file_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (copied(tmp_path) / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        check_weights(tmp_path)


def test_incomplete_weights_are_refused_before_anything_starts(tmp_path: Path) -> None:
    folder = copied(tmp_path, num_hidden_layers=3)
    with pytest.raises(ConfigurationError, match="lacks the weights of 1 of its 3 layers"):
        SGLang(device="cpu", dtype="float32").build(Model(str(folder)))


def test_checkpoint_without_a_linear_layer_is_refused(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigurationError, match=r"lacks 1 weights .*layers\.1\.self_attn\.q_proj"):
        SGLang(device="cpu", dtype="float32").build(Model(str(folder)))


def test_quantization_of_the_checkpoint_is_recorded(
    session: ServingSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang's own description names what was asked for, which is nothing."""
    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    folder = copied(tmp_path, quantization_config=fp8, dtype="bfloat16", torch_dtype="bfloat16")
    requests: Any = session._requests
    runtime = Runtime(requests._thread, import_sglang().model_config(str(folder)))
    served = ServedModel(runtime, session.tokenizer, 512, None)
    monkeypatch.setattr("evalution_sglang.session.load", lambda *_: served)
    with open_session(SGLang(), Model("builtin:tiny"), session.capabilities) as other:
        described = other.describe_execution()
    assert (described["quantization"], described["dtype"]) == ("fp8", "bfloat16, fp8")
