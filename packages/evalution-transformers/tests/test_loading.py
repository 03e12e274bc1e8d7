"""A checkpoint is loaded whole, from where it was asked for, or refused in words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.utils import hub

from evalution_core import ConfigurationError, LoglikelihoodRequest, Model
from evalution_enginekit.model_source import to_plain
from evalution_transformers import Transformers, TransformersCompat
from evalution_transformers.load import _find_identity
from evalution_transformers.runtime import CudnnAttention

# peft's use of it
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

PAIR = LoglikelihoodRequest("w5 w6", " w7 w8")


def test_a_checkpoint_that_lacks_weights_is_refused(write_checkpoint: Callable[..., Path]) -> None:
    folder = write_checkpoint()
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigurationError, match=r"lacks 1 weights .*\(lm_head.weight\).*random"):
        Transformers(device="cpu").build(Model(str(folder)))


def test_a_model_in_the_cache_of_the_hub_is_its_repository_and_commit(
    monkeypatch: pytest.MonkeyPatch, write_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    releases_of_4 = {"target": hub, "name": "TRANSFORMERS_CACHE", "value": str(tmp_path / "hub")}
    monkeypatch.setattr(**releases_of_4, raising=False)
    commit = "0123456789abcdef" * 2 + "01234567"
    folder = tmp_path / "hub" / "models--owner--name"
    shutil.copytree(write_checkpoint(), folder / "snapshots" / commit)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    with Transformers(device="cpu").build(Model("owner/name")) as session:
        assert session.identity() == {"repository": "owner/name", "revision": commit}


def test_broken_weights_are_refused(write_checkpoint: Callable[..., Path]) -> None:
    folder = write_checkpoint()
    (folder / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(ConfigurationError, match="no causal model could be loaded"):
        Transformers(device="cpu").build(Model(str(folder)))


def test_weights_of_another_shape_are_refused(write_checkpoint: Callable[..., Path]) -> None:
    folder = write_checkpoint()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    with pytest.raises(ConfigurationError, match="no causal model could be loaded"):
        Transformers(device="cpu").build(Model(str(folder)))


def test_a_model_of_another_kind_is_refused_briefly(write_checkpoint: Callable[..., Path]) -> None:
    folder = write_checkpoint()
    transformers.ViTConfig().save_pretrained(folder)
    with pytest.raises(ConfigurationError, match="ViTConfig") as refused:
        Transformers(device="cpu").build(Model(str(folder)))
    assert len(str(refused.value)) < 1000


def test_device_and_device_map_together_are_refused() -> None:
    model = Model("builtin:tiny", model_kwargs={"device_map": "cpu"})
    with pytest.raises(ConfigurationError, match=r"device='cpu' and .* device_map say"):
        Transformers(device="cpu").build(model)


@pytest.fixture
def adapter(write_checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """A LoRA adapter of the checkpoint, that changes its answers."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    base = transformers.AutoModelForCausalLM.from_pretrained(write_checkpoint(name="base"))
    settings = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    peft.get_peft_model(base, settings).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize("kind", [Transformers, TransformersCompat])
def test_an_adapter_changes_answers_and_identity(
    kind: type[TransformersCompat], adapter: Path, write_checkpoint: Callable[..., Path]
) -> None:
    import peft

    model = Model(str(write_checkpoint()))
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(str(model.path))
    adapted: Any = peft.PeftModel.from_pretrained(loaded, adapter).eval()
    with torch.no_grad():
        logprobs = adapted(input_ids=torch.tensor([[5, 6, 7]])).logits[0].log_softmax(-1)
    right = float(logprobs[1, 7] + logprobs[2, 8])
    with kind(device="cpu").build(model) as session:
        (plain,) = session.loglikelihood([PAIR])
    with kind(device="cpu", adapter=str(adapter)).build(model) as session:
        (found,) = session.loglikelihood([PAIR])
        assert "adapter/adapter_model.safetensors" in (session.identity() or {})
    assert found.logprob == pytest.approx(right, abs=1e-4)
    assert abs(found.logprob - plain.logprob) > 1e-2


def test_an_adapter_as_the_model_is_identified_with_its_settings_and_its_base(
    adapter: Path, write_checkpoint: Callable[..., Path]
) -> None:
    for file in write_checkpoint().glob("tokenizer*"):
        shutil.copy(file, adapter)

    def identify() -> Any:
        with TransformersCompat(device="cpu").build(Model(str(adapter))) as session:
            return session.identity()

    found = [identify()]
    assert {"adapter_config.json", "base/model.safetensors"} <= found[0].keys()
    settings = json.loads((adapter / "adapter_config.json").read_text())
    base = Path(settings["base_model_name_or_path"])
    (adapter / "adapter_config.json").write_text(json.dumps({**settings, "lora_alpha": 64}))
    found.append(identify())
    weights = load_file(base / "model.safetensors")
    weights["lm_head.weight"] *= 3
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    found.append(identify())
    assert found[0] != found[1] != found[2] != found[0]
    shutil.copytree(base, adapter, dirs_exist_ok=True)
    assert not any(name.startswith("base/") for name in identify())
    (adapter / "adapter_config.json").rename(adapter / "deep.json")
    (adapter / "deep").mkdir()
    (adapter / "deep.json").rename(adapter / "deep" / "adapter_config.json")
    (adapter / "adapter_model.safetensors").rename(adapter / "deep" / "adapter_model.safetensors")
    elsewhere = Model(str(adapter), model_kwargs={"adapter_kwargs": {"subfolder": "deep"}})
    with TransformersCompat(device="cpu").build(elsewhere) as session:
        loaded: Any = session._model
        is_adapted = getattr(loaded, "_hf_peft_config_loaded", False)  # not by releases of 4
        assert (session.identity() is None) is is_adapted


def test_an_adapter_whose_base_is_not_here_is_not_identified(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    for folder in (None, tmp_path):
        found = _find_identity(Model("owner/name"), folder, "abc", None, is_adapted=True)
        assert found is None


def test_an_adapter_of_another_model_is_refused(
    adapter: Path, write_checkpoint: Callable[..., Path]
) -> None:
    weights = load_file(adapter / "adapter_model.safetensors")
    renamed = {name.replace("layers.1", "layers.7"): value for name, value in weights.items()}
    save_file(renamed, adapter / "adapter_model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigurationError, match=r"is not one of this model: .* for one"):
        Transformers(device="cpu", adapter=str(adapter)).build(Model(str(write_checkpoint())))


def test_an_adapter_is_read_from_safetensors(
    adapter: Path, write_checkpoint: Callable[..., Path]
) -> None:
    weights = load_file(adapter / "adapter_model.safetensors")
    torch.save(weights, adapter / "adapter_model.bin")
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigurationError, match=r"has no adapter_model\.safetensors"):
        Transformers(device="cpu", adapter=str(adapter)).build(Model(str(write_checkpoint())))


def test_identities_of_two_configurations_differ(write_checkpoint: Callable[..., Path]) -> None:
    folder = str(write_checkpoint())
    found: list[Any] = []
    for bits in (4, 8):
        settings = transformers.GPTQConfig(bits=bits, dataset=["w5"])
        found.append(to_plain({"quantization_config": settings, "torch": torch.float16}))
    assert found[0] != found[1]
    json.dumps(found)
    with TransformersCompat(device="cpu").build(
        Model(folder, model_kwargs={"config": transformers.AutoConfig.from_pretrained(folder)})
    ) as session:
        assert json.dumps(session.identity()).count('"hidden_size": 32')


def test_attention_keeps_from_cudnn_while_a_session_is_open(
    write_checkpoint: Callable[..., Path],
) -> None:
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    before = enabled()
    with Transformers(device="cpu").build(Model(str(write_checkpoint()))):
        assert not enabled()
    assert enabled() == before


def test_setting_of_attention_comes_back_after_the_last_that_avoids_cudnn() -> None:
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    before, setting = enabled(), CudnnAttention()
    first, second = setting.avoid(), setting.avoid()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not enabled()
    second.__exit__(None, None, None)
    assert enabled() == before
