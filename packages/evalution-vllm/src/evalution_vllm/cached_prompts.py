"""Whether prompt log-probabilities can begin behind the cached prefix, tried on the model.

vLLM recomputes the whole prompt of a request that asks for them, unless it is told to read its
cache; then it has nothing to tell of the cached part, and scores need nothing of it.
"""

from __future__ import annotations

from evalution_enginekit import TokenScore, TokenSpan
from evalution_enginekit.serving import SpanGroup
from evalution_vllm.loading import Loaded
from evalution_vllm.outputs import begins_in_time, group_scores
from evalution_vllm.parameters import Parameters
from evalution_vllm.requests import prompt_of
from evalution_vllm.upstream import StepEngine

_SCORED = 4
_STRIDE = 7
_TOLERANCE = {"float32": 1e-3, "float16": 5e-2, "bfloat16": 1e-1}
_LOOSEST = 0.3


def cache_problem(
    engine: StepEngine, parameters: Parameters, loaded: Loaded, vocabulary: int
) -> str | None:
    """Why the cache must be left unread; None if a prompt scores the same with it."""
    config = loaded.llm.llm_engine.vllm_config
    if not config.cache_config.enable_prefix_caching:
        return "prefix caching is off"
    length = 2 * int(config.cache_config.block_size) + 1 + _SCORED
    if length > loaded.max_model_len:
        return "the window holds no two blocks of the cache"
    token_ids = [(_STRIDE * at) % vocabulary for at in range(length)]
    group = SpanGroup((TokenSpan(token_ids, length - _SCORED),))
    whole, _ = _run(engine, parameters, group, reads_cache=False)
    behind, cached = _run(engine, parameters, group, reads_cache=True)
    if behind is None or whole is None:
        return "the cache reached into the scored tokens"
    if cached == 0:
        return "a prompt that was there before isn't found in the cache"
    dtype = str(config.model_config.dtype).removeprefix("torch.")
    difference = max(abs(a - b) for a, b in zip(whole.logprobs, behind.logprobs, strict=True))
    if difference > _TOLERANCE.get(dtype, _LOOSEST):
        return f"scores behind it differ by {difference:.3g} nats"
    return None


def _run(
    engine: StepEngine, parameters: Parameters, group: SpanGroup, *, reads_cache: bool
) -> tuple[TokenScore | None, int]:
    """The score of the one span, None where the cache had too much, and the cached tokens."""
    engine.add_request(
        f"evalution-cache-{reads_cache}",
        prompt_of(list(group.fed)),
        parameters.scoring(group, reads_cache=reads_cache),
    )
    while True:
        for output in engine.step():
            if output.finished:
                cached = output.num_cached_tokens or 0
                if not begins_in_time(output, group):
                    return None, cached
                return group_scores(output, group)[0], cached
