"""Probes what client and server can do together, on a few tokens when a session is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from evalution_core import Capability, EngineRuntimeError, InvalidRequestError
from evalution_tinker.upstream import SampleResponse, Sampling, align_logprobs

Greedy = Literal["top-k", "greedy sample"]

_SCORES = frozenset({Capability.LOGLIKELIHOOD, Capability.ROLLING})
_SUFFIX = "prompt_logprobs_last_n"
_SAMPLED = "topk_sample_logprobs"
_ONE = {"max_tokens": 1, "temperature": 0.0}


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """The requests that a server understands.

    `greedy`: the method that decides `is_greedy`. `suffixes`: it can score only the end of a
    prompt. `lacking`: the reason for each missing capability of the engine.
    """

    greedy: Greedy
    suffixes: bool
    capabilities: frozenset[Capability]
    lacking: Mapping[Capability, str]


async def probe_server(
    sampling: Sampling,
    token_ids: list[int],
    capabilities: frozenset[Capability],
    missing: Mapping[Capability, str],
) -> ServerCapabilities:
    """Score three or more known tokens in every way that the client offers.

    `missing` capabilities are known to be lacking already, with the reason.

    Raises:
        EngineUnavailableError: client and server speak versions that don't meet.
        ConfigurationError: the server refuses the key.
        EngineRuntimeError: it can't be asked at all.
    """
    length = len(token_ids)
    lacking: dict[Capability, str] = dict(missing)
    answer = await sampling.sample(
        token_ids, _ONE, include_prompt_logprobs=True, topk_prompt_logprobs=1
    )
    try:
        align_logprobs(answer.prompt_logprobs, length, 1)
    except EngineRuntimeError as error:
        lacking |= dict.fromkeys(_SCORES, str(error))
    if (rows := answer.topk_prompt_logprobs) is None:
        lacking[Capability.PROMPT_TOP_LOGPROBS] = (
            "the server leaves out topk_prompt_logprobs: it lists no likeliest tokens of a prompt"
        )
    if not await _lists_sampled(sampling, token_ids):
        lacking[Capability.LOGPROBS] = (
            f"the client or the server has no {_SAMPLED}, so it lists no alternatives"
        )
    return ServerCapabilities(
        greedy="greedy sample" if rows is None else "top-k",
        suffixes=not _SCORES & lacking.keys() and await _scores_suffixes(sampling, token_ids),
        capabilities=capabilities - lacking.keys(),
        lacking=lacking,
    )


async def _lists_sampled(sampling: Sampling, token_ids: list[int]) -> bool:
    if not sampling.takes(_SAMPLED):
        return False
    answer = await _try_sample(sampling, token_ids, **{_SAMPLED: 1})
    return answer is not None and bool(getattr(answer.sequences[0], "topk_logprobs", None))


async def _scores_suffixes(sampling: Sampling, token_ids: list[int]) -> bool:
    if not sampling.takes(_SUFFIX):
        return False
    answer = await _try_sample(sampling, token_ids, include_prompt_logprobs=True, **{_SUFFIX: 1})
    return answer is not None and answer.prompt_logprobs is not None


async def _try_sample(
    sampling: Sampling, token_ids: list[int], **wanted: object
) -> SampleResponse | None:
    """Return the answer, or None if the server doesn't know a parameter.

    The client itself raises `RuntimeError` where a server ignores `prompt_logprobs_last_n`.
    """
    try:
        return await sampling.sample(token_ids, _ONE, **wanted)
    except (InvalidRequestError, RuntimeError):
        return None
