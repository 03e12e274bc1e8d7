"""The second session base passes the conformance kit, on a made-up API of hosted models."""

from __future__ import annotations

import asyncio
import math
import random
from bisect import bisect_left
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest

from evalution_conformance import EngineConformance
from evalution_core import (
    BaseEngine,
    Capability,
    InvalidRequestError,
    Model,
    RollingLoglikelihoodRequest,
    speed_only,
)
from evalution_enginekit import (
    ByteTokenizer,
    CompletionChunk,
    RequestLoop,
    RequestPrompt,
    RequestSession,
    TokenScore,
    TokenSpan,
    bind_tokenizer,
)
from evalution_enginekit.mock import MOCK_CAPABILITIES, Mock, table


class HostedModel:
    """An API as hosted models have it: ids in, one sampled id after the other out."""

    def __init__(self, name: str):
        self._table = table(name)

    async def sample(self, token_ids: list[int], seed: int | None, **cut: Any) -> tuple[int, Any]:
        await asyncio.sleep(0)
        row = self._table.row(token_ids)
        ranked = sorted(range(len(row)), key=lambda i: -row[i])
        if not cut["do_sample"]:
            return ranked[0], row
        kept = ranked[: cut["top_k"] or None]
        weights = [math.exp((row[i] - row[kept[0]]) / cut["temperature"]) for i in kept]
        masses = list(accumulate(weights))
        size = 1 + bisect_left(masses[:-1], cut["top_p"] * masses[-1])
        chance = random.Random(None if seed is None else seed * 1009 + len(token_ids))
        return chance.choices(kept[:size], weights[:size])[0], row

    async def logprobs(self, token_ids: list[int]) -> list[list[float]]:
        await asyncio.sleep(0)
        return [self._table.row(token_ids[:at]) for at in range(1, len(token_ids))]


@dataclass(slots=True)
class Hosted(BaseEngine):
    max_model_len: int = 512
    batch_size: int = speed_only(default=4)

    capabilities = MOCK_CAPABILITIES - {Capability.DISTRIBUTIONS}

    def build(self, model: Model) -> HostedSession:
        return HostedSession(
            engine="Hosted",
            capabilities=self.capabilities,
            loop=RequestLoop("the Hosted session", self.batch_size),
            tokenizer=bind_tokenizer(model, ByteTokenizer()),
            max_model_len=self.max_model_len,
            dtype="float64",
        )


class HostedSession(RequestSession):
    _model = HostedModel("hosted")

    async def _complete(self, prompt: RequestPrompt) -> AsyncIterator[CompletionChunk]:
        asked = prompt.request
        ids = list(prompt.token_ids or ())
        for _ in range(asked.max_new_tokens):
            token_id, row = await self._model.sample(
                ids,
                asked.seed,
                do_sample=asked.do_sample,
                top_k=asked.top_k,
                top_p=asked.top_p,
                temperature=asked.temperature,
            )
            ids.append(token_id)
            ends = token_id in prompt.stop_ids
            yield CompletionChunk(
                token_ids=[token_id],
                logprobs=[row[token_id]],
                top_logprobs=[_find_top(row, asked.logprobs)],
                finish="stop" if ends else None,
            )
            if ends:
                return
        yield CompletionChunk(token_ids=[], finish="length")

    async def _score(self, span: TokenSpan) -> TokenScore:
        rows = (await self._model.logprobs(list(span.token_ids)))[span.start - 1 :]
        scored = list(zip(rows, span.token_ids[span.start :], strict=True))
        greedy = all(row[token_id] >= max(row) for row, token_id in scored)
        tops = [_find_top(row, span.top_logprobs) for row in rows]
        return TokenScore([row[token_id] for row, token_id in scored], greedy, top_logprobs=tops)


def _find_top(row: list[float], count: int | None) -> dict[int, float]:
    return {i: row[i] for i in sorted(range(len(row)), key=lambda i: -row[i])[: count or 0]}


class Choosy(HostedSession):
    """Its runtime finds the letter x wrong."""

    async def _score(self, span: TokenSpan) -> TokenScore:
        if ord("x") in span.token_ids:
            raise InvalidRequestError("no x")
        return await super()._score(span)


def test_refused_window_is_reported_under_its_request() -> None:
    session = Choosy(
        engine="Hosted",
        capabilities=MOCK_CAPABILITIES,
        loop=RequestLoop("the Hosted session", 2),
        tokenizer=ByteTokenizer(),
        max_model_len=16,
    )
    texts = ["a" * 40, "b", "c" * 20 + "x" * 20]
    with (
        session,
        pytest.raises(InvalidRequestError, match="1 of 3 requests refused, the") as caught,
    ):
        session.loglikelihood_rolling([RollingLoglikelihoodRequest(text) for text in texts])
    assert set(caught.value.failures or ()) == {2}


class TestRequestSession(EngineConformance):
    engine = Hosted()
    oracle = Mock()
    model = Model(path="hosted")
