"""A checkpoint is loaded whole, from where it was asked for, or refused in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from evalution_core import ConfigurationError, LoglikelihoodRequest, Model
from evalution_transformers import Transformers, TransformersCompat
from evalution_transformers.load import to_plain
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
