"""The packed attention gives what tinygrad's own blocks give, for every kind of layer."""

# tinygrad leaves most of its functions without types.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinygrad", reason="tinygrad is not installed")

from tinygrad import Tensor, nn
from tinygrad.llm.model import Transformer, TransformerConfig

from evalution_enginekit import TokenSpan, plan_scoring
from evalution_tinygrad.device import open_device
from evalution_tinygrad.kv_cache import Prefixes
from evalution_tinygrad.model import Forward, Packing, Rotary
from evalution_tinygrad.score import PlannedRuns

_VOCABULARY = 32
_LLAMA: dict[str, Any] = {
    "num_blocks": 1,
    "dim": 32,
    "hidden_dim": 48,
    "n_heads": 4,
    "n_kv_heads": 2,
    "norm_eps": 1e-5,
    "vocab_size": _VOCABULARY,
    "head_dim": 16,
    "rope_theta": 10000.0,
    "rope_dim": 16,
    "v_head_dim": 16,
    "max_context": 64,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
_LATENT = {"n_kv_heads": 4, "kv_lora_rank": 8, "head_dim": 24, "rope_dim": 8, "v_head_dim": 12}
_KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": 16},
    "qwen3moe": {"qk_norm": 16, "norm_topk_prob": True, **_EXPERTS},
    "olmoe": {"qk_norm": 32, "n_heads": 2, **_EXPERTS},
    "glm4moe": {"rope_dim": 8, "qkv_bias": True, "expert_bias": True, **_EXPERTS},
    "deepseek2": _LATENT,
    "deepseek2 with compressed queries": {**_LATENT, "q_lora_rank": 8},
}


@pytest.mark.parametrize("kind", _KINDS)
def test_packed_sequences_give_what_upstreams_blocks_give(kind: str) -> None:
    # Three sequences with a common beginning, packed across the borders of two passes.
    head = [3, 1, 4, 1, 5, 9, 2, 6]
    sequences = [[*head, 5, 3], [*head, 8, 9, 7, 9, 3], [2, 7, 1]]
    with open_device("cpu", None, None).activate():
        model = _random_model(_KINDS[kind])
        expected = [_upstream(model, sequence, 16) for sequence in sequences]
        found = _packed(model, sequences)
    for theirs, ours in zip(expected, found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.parametrize("kind", ["llama", "deepseek2"])
def test_what_is_no_number_stays_in_its_own_sequence(kind: str) -> None:
    head = [3, 1, 4, 1, 5, 9, 2, 6]
    bad = 7
    sequences = [[*head, 5, 3], [*head, 8, bad, 2, 5, 3], [2, 4, 1]]
    with open_device("cpu", None, None).activate():
        model: Any = _random_model(_KINDS[kind])
        expected = _packed(model, sequences)
        embedding = model.token_embd

        def embed(token_ids: Tensor) -> Tensor:
            return (token_ids == bad).unsqueeze(-1).where(float("nan"), embedding(token_ids))

        model.token_embd = embed
        found = _packed(model, sequences)
    before = len(head) + 1
    assert np.isnan(found[1][before:]).all()
    for ours, right in zip(
        [found[0], found[1][:before], found[2]],
        [expected[0], expected[1][:before], expected[2]],
        strict=True,
    ):
        np.testing.assert_array_equal(ours, right)


def _random_model(changes: dict[str, Any]) -> Transformer:
    Tensor.manual_seed(1)
    model = Transformer(TransformerConfig(**{**_LLAMA, **changes}))
    for parameter in nn.state.get_parameters(model):
        parameter.replace((Tensor.randn(*parameter.shape) * 0.2).contiguous())
    Tensor.realize(*nn.state.get_parameters(model))
    return model


def _upstream(model: Any, token_ids: list[int], length: int) -> Any:
    """Logits [tokens, vocabulary] by tinygrad's own blocks, with nothing in their cache.

    What is put behind the tokens to make the `length` changes nothing before it, and saves a shape.
    """
    for block in model.blk:
        for name in ("cache_kv", "cache_k"):
            block.__dict__.pop(name, None)
    x = model.token_embd(Tensor([[*token_ids, *[0] * (length - len(token_ids))]])).float()
    for block in model.blk:
        x = block(x, 0)
    return model.output(model.output_norm(x))[0].numpy()[: len(token_ids)]


def _packed(model: Any, sequences: list[list[int]]) -> list[Any]:
    config = model.blk[0].config
    forward = Forward(model, Rotary(config.rope_dim, config.rope_theta))
    packing = Packing(forward, (8,))
    spans = [TokenSpan([*sequence, 0], 1) for sequence in sequences]
    runs = PlannedRuns(plan_scoring(spans), Prefixes(forward.cache))
    found = [np.zeros((len(sequence), _VOCABULARY)) for sequence in sequences]
    for each in packing.passes(runs, runs.total):
        logits = forward.logits(each.hidden, [wanted.row for wanted in each.wanted], 16)
        for wanted, row in zip(each.wanted, logits, strict=True):
            found[wanted.target.span][wanted.target.position] = row
    assert packing.tokens_run == len({tuple(s[: i + 1]) for s in sequences for i in range(len(s))})
    return found
