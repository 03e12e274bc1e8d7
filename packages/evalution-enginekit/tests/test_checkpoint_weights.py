"""A checkpoint that lacks weights of its model is refused, whatever form the others have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalution_core import ConfigurationError
from evalution_enginekit.model_source import check_complete

torch: Any = pytest.importorskip("torch", reason="needs the environment torch of tools/envs")
transformers: Any = pytest.importorskip("transformers", reason="needs the environment torch")
pytestmark = pytest.mark.wide

Store = Callable[..., Path]
LAYER = "model.layers.1"


def configure(**settings: Any) -> Any:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "vocab_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    names = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False}
    return transformers.LlamaConfig(**(sizes | heads | names | settings))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Write a model's weights in two files, without some of them and with others renamed."""

    def write(config: Any, *lacking: str, renamed: dict[str, str] | None = None) -> Path:
        from safetensors.torch import save_file

        weights = transformers.AutoModelForCausalLM.from_config(config).state_dict()
        if config.tie_word_embeddings:
            del weights["lm_head.weight"]
        for name, other in (renamed or {}).items():
            weights[other] = weights.pop(name)
        names = [name for name in weights if name not in lacking]
        for part in range(2):
            kept = {name: weights[name] for name in names[part::2]}
            save_file(kept, tmp_path / f"model-{part}.safetensors")
        return tmp_path

    return write


@pytest.mark.parametrize("tied", [False, True])
def test_complete_checkpoint_is_accepted(store: Store, tied: bool) -> None:
    config = configure(tie_word_embeddings=tied)
    check_complete(config, store(config))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", ["mlp.down_proj", "self_attn.q_proj", "input_layernorm"])
def test_missing_weight_is_named(store: Store, name: str, tied: bool) -> None:
    config = configure(tie_word_embeddings=tied)
    folder = store(config, f"{LAYER}.{name}.weight")
    with pytest.raises(ConfigurationError) as refused:
        check_complete(config, folder)
    assert str(refused.value) == (
        f"the checkpoint {str(folder)!r} lacks 1 weights of a causal model "
        f"({LAYER}.{name}.weight); its answers would be those of random ones"
    )


def test_tied_weights_are_missing_only_if_both_are(store: Store) -> None:
    config = configure(tie_word_embeddings=True)
    with pytest.raises(ConfigurationError, match=r"lacks 1 weights .*\(lm_head.weight\)"):
        check_complete(config, store(config, "model.embed_tokens.weight"))
    untied = configure()
    with pytest.raises(ConfigurationError, match=r"lacks 1 weights .*\(lm_head.weight\)"):
        check_complete(untied, store(untied, "lm_head.weight"))


def test_missing_file_is_noticed(store: Store) -> None:
    config = configure()
    folder = store(config)
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(ConfigurationError, match=r"lacks \d+ weights of a causal model \(.*, …\)"):
        check_complete(config, folder)


def test_quantised_layer_is_there_under_other_names(store: Store) -> None:
    config = configure()
    quantised = {f"{LAYER}.mlp.{name}_proj": "qweight" for name in ("down", "up", "gate")}
    renamed = {f"{name}.weight": f"{name}.{part}" for name, part in quantised.items()}
    check_complete(config, store(config, renamed=renamed))
    folder = store(config, "model.layers.0.input_layernorm.weight", renamed=renamed)
    with pytest.raises(ConfigurationError, match=r"\(model.layers.0.input_layernorm.weight\)"):
        check_complete(config, folder)


def test_names_that_cannot_be_compared_are_left_to_the_runtime(
    store: Store, tmp_path: Path
) -> None:
    config = configure()
    check_complete(config, None)
    check_complete(config, tmp_path)
    joined = {
        f"model.layers.{at}.self_attn.q_proj.weight": f"model.layers.{at}.self_attn.qkv.weight"
        for at in range(2)
    }
    check_complete(config, store(config, renamed=joined))
    lacking = store(config, f"{LAYER}.mlp.down_proj.weight")
    check_complete(configure(architectures=["OwnForCausalLM"]), lacking)
    check_complete(configure(architectures=None), lacking)
    check_complete(transformers.PretrainedConfig(architectures=["LlamaForCausalLM"]), lacking)


def test_experts_that_transformers_joins_are_left_to_the_runtime(store: Store) -> None:
    config = transformers.Qwen3MoeConfig(
        **configure().to_dict()
        | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"},
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=8,
    )
    experts = [f"model.layers.{at}.mlp.experts" for at in range(2)]
    joined = {
        f"{those}.{name}_proj": f"{those}.0.{name}.weight"
        for those in experts
        for name in ("gate_up", "down")
    }
    check_complete(config, store(config, renamed=joined))
    folder = store(config, f"{LAYER}.self_attn.q_proj.weight", renamed=joined)
    with pytest.raises(ConfigurationError, match=rf"\({LAYER}.self_attn.q_proj.weight\)"):
        check_complete(config, folder)
