"""A trial of the prefix cache: whether scores that begin after the cached prefix are right.

vLLM recomputes the whole prompt of a request that asks for prompt log-probabilities, unless the
request says to read the cache; then it returns none for the cached part, which scores don't need.
"""

from __future__ import annotations

from typing import Any

from evalution_enginekit import TokenScore, TokenSpan
from evalution_enginekit.self_check import probe_ids, score_tolerance
from evalution_enginekit.serving import SpanGroup
from evalution_vllm.requests import Parameters, group_scores, has_scored_rows, to_prompt
from evalution_vllm.upstream import StepEngine

_SCORED = 4


def find_cache_problem(
    engine: StepEngine, parameters: Parameters, config: Any, *, vocabulary: int, max_model_len: int
) -> str | None:
    """Return why scoring must not read the cache; None if a prompt scores the same with it.

    `config` is vLLM's own configuration of `engine`.
    """
    if not config.cache_config.enable_prefix_caching:
        return "prefix caching is off"
    length = 2 * int(config.cache_config.block_size) + 1 + _SCORED
    if length > max_model_len:
        return "the window holds no two blocks of the cache"
    group = SpanGroup((TokenSpan(probe_ids(vocabulary, length), length - _SCORED),))
    whole, _ = _score(engine, parameters, group, reads_cache=False)
    after, cached = _score(engine, parameters, group, reads_cache=True)
    if after is None or whole is None:
        return "the cache reached into the scored tokens"
    if cached == 0:
        return "a prompt that was there before isn't found in the cache"
    difference = max(abs(a - b) for a, b in zip(whole.logprobs, after.logprobs, strict=True))
    if difference > score_tolerance(str(config.model_config.dtype).removeprefix("torch.")):
        return f"scores after the cached prefix differ by {difference:.3g} nats"
    return None


def _score(
    engine: StepEngine, parameters: Parameters, group: SpanGroup, *, reads_cache: bool
) -> tuple[TokenScore | None, int]:
    """Return the span's score, None where the cache reaches into it, and the cached tokens."""
    engine.add_request(
        f"evalution-cache-{reads_cache}",
        to_prompt(group.fed),
        parameters.scoring(group, reads_cache=reads_cache),
    )
    while True:
        for output in engine.step():
            if output.finished:
                cached = output.num_cached_tokens or 0
                if not has_scored_rows(output, group, group.fed):
                    return None, cached
                return group_scores(output, group, group.fed)[0], cached
