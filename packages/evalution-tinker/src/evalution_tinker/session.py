"""A model on a Tinker-compatible server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

from evalution_core import EngineRuntimeError
from evalution_core.requests import FinishReason
from evalution_enginekit import (
    CompletionChunk,
    RequestPrompt,
    RequestSession,
    Tokenizer,
    TokenScore,
    TokenSpan,
)
from evalution_tinker.probe import ServerCapabilities
from evalution_tinker.upstream import Sampling, align_logprobs, are_greedy, take_tops

_FINISHES: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class TinkerSession(RequestSession):
    """A session on a sampling client, which sends token ids.

    Args:
        sampling: makes the requests.
        server: the requests that the server understands.
        described: goes into `describe_execution`: model, server, client.
        resources: closes the client, unless that is the caller's; the session's from now on.
        base: arguments of `RequestSession`.
    """

    def __init__(
        self,
        sampling: Sampling,
        server: ServerCapabilities,
        described: dict[str, Any],
        resources: ExitStack,
        **base: Any,
    ) -> None:
        super().__init__(
            engine="Tinker",
            capabilities=server.capabilities,
            lacking=server.lacking,
            **base,
        )
        self._sampling = sampling
        self._server = server
        self._described = described
        self._resources = resources

    async def _complete(self, prompt: RequestPrompt) -> AsyncIterator[CompletionChunk]:
        request = prompt.request
        wanted = {} if not request.logprobs else {"topk_sample_logprobs": request.logprobs}
        params = _make_params(prompt, self._tokenizer)
        answer = await self._sampling.sample(prompt.token_ids or (), params, **wanted)
        sequence = answer.sequences[0]
        finish = _FINISHES.get(sequence.stop_reason)
        if finish is None:
            raise EngineRuntimeError(
                f"the server ended the completion with stop_reason {sequence.stop_reason!r}"
            )
        yield CompletionChunk(
            token_ids=sequence.tokens,
            logprobs=sequence.logprobs,
            top_logprobs=_to_top_logprobs(sequence) if wanted else None,
            finish=finish,
            completion_tokens=len(sequence.tokens),
        )

    async def _score(self, span: TokenSpan) -> TokenScore:
        ids, length = list(span.token_ids), len(span.token_ids)
        wanted: dict[str, Any] = {"include_prompt_logprobs": True}
        if self._server.suffixes:
            wanted["prompt_logprobs_last_n"] = length - span.start
        if self._server.greedy == "top-k":
            wanted["topk_prompt_logprobs"] = span.top_logprobs or 1
        # The protocol has no scoring without sampling: the one token isn't used.
        answer = await self._sampling.sample(ids, {"max_tokens": 1, "temperature": 0.0}, **wanted)
        logprobs = align_logprobs(answer.prompt_logprobs, length, span.start)
        if self._server.greedy == "top-k":
            rows = answer.topk_prompt_logprobs
            is_greedy = are_greedy(logprobs, rows, length)
            if span.top_logprobs is None:
                return TokenScore(logprobs, is_greedy)
            tops = take_tops(rows, length, span.start, span.top_logprobs)
            return TokenScore(logprobs, is_greedy, top_logprobs=tops)
        return TokenScore(logprobs, await self._is_sampled(ids[: span.start], ids[span.start :]))

    async def _is_sampled(self, context: list[int], wanted: list[int]) -> bool:
        """Return True if greedy decoding from `context` gives the `wanted` tokens."""
        params: dict[str, Any] = {"max_tokens": len(wanted), "temperature": 0.0, "stop": []}
        answer = await self._sampling.sample(context, params)
        return answer.sequences[0].tokens == wanted

    async def _release(self) -> None:
        await asyncio.to_thread(self._resources.close)

    def _describe(self) -> dict[str, Any]:
        return {
            **self._described,
            "is_greedy_by": self._server.greedy,
            "scores_suffixes_alone": self._server.suffixes,
        }


def _make_params(prompt: RequestPrompt, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return sampling parameters; the kit cuts at stops, which come back inside `tokens`.

    `stop` holds texts or ids, never both. Text alone would leave the end of a sequence to the
    server, which is no harm: the kit ends there too. Where it must not end, no text is sent.
    """
    request = prompt.request
    stop: list[Any] = list(request.stop) if prompt.stop_ids else []
    # SkyRL refuses more than the model has tokens.
    most = request.top_k if tokenizer is None else min(request.top_k, tokenizer.vocabulary_size)
    return {
        "max_tokens": request.max_new_tokens,
        "temperature": request.temperature if request.do_sample else 0.0,
        "top_p": request.top_p if request.do_sample else 1.0,
        "top_k": most if request.do_sample and most else -1,
        "seed": request.seed,
        "stop": stop or sorted(prompt.stop_ids),
    }


def _to_top_logprobs(sequence: Any) -> list[dict[int, float]] | None:
    rows: Any = sequence.topk_logprobs
    return None if rows is None else [dict(row or ()) for row in rows]
