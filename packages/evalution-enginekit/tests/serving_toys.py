"""Serving runtimes of all three forms whose every answer can be worked out by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from evalution_core import Capability, InvalidRequestError
from evalution_enginekit import (
    ByteTokenizer,
    TokenEvent,
    TokenFeed,
    TokenPrompt,
    TokenScore,
    TokenSession,
    TokenSpan,
)
from evalution_enginekit.serving import (
    EventLoopRequests,
    FixedBatchRequests,
    RequestUpdate,
    ServingLoop,
    ServingRuntime,
    SpanGroup,
    Work,
    span_groups,
)

LOUD = "!"


def completion(prompt: TokenPrompt) -> list[int]:
    """The bytes of the prompt again, then the end token, cut at the limit."""
    said = [token_id for token_id in prompt.token_ids if token_id < 256]
    return [*said, *sorted(prompt.stop_ids)][: prompt.max_new_tokens]


def group_scores(group: SpanGroup) -> list[TokenScore]:
    """A token's log-probability is minus its id over 100, less its position over 1000."""
    return [
        TokenScore(
            [-i / 100 - at / 1000 for at, i in enumerate(span.token_ids) if at >= span.start], True
        )
        for span in group.spans
    ]


def refused(prompt: TokenPrompt) -> None:
    if ord(LOUD) in prompt.token_ids:
        raise InvalidRequestError("not so loud")


class Stepping:
    """A token for every prompt and the scores of every group with each step."""

    def __init__(self) -> None:
        self.running: dict[str, Work] = {}
        self.told: dict[str, int] = {}
        self.aborted: list[str] = []
        self.batches: list[list[str]] = []
        self.groups: list[SpanGroup] = []
        self.most_scored = 0
        self.dead = False

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        refused(prompt)
        self.running[request_id] = prompt

    def score(self, request_id: str, group: SpanGroup) -> None:
        self.running[request_id] = group
        self.groups.append(group)
        scored = [work.inner for work in self.running.values() if isinstance(work, SpanGroup)]
        self.most_scored = max(self.most_scored, sum(scored))

    def advance(self) -> Iterator[RequestUpdate]:
        if self.dead:
            raise OSError("the core is gone")
        self.batches.append(list(self.running))
        for name, work in list(self.running.items()):
            if isinstance(work, SpanGroup):
                del self.running[name]
                yield RequestUpdate(name, is_finished=True, scores=group_scores(work))
                continue
            at = self.told[name] = self.told.get(name, 0) + 1
            tokens = completion(work)
            over = at == len(tokens)
            if over:
                del self.running[name]
            yield RequestUpdate(name, over, tokens[at - 1 : at], finish="length" if over else None)

    def abort(self, request_ids: Sequence[str]) -> None:
        self.aborted += request_ids
        for name in request_ids:
            del self.running[name]

    def wake(self) -> None: ...


class Async(EventLoopRequests):
    """The same, with a coroutine for each request."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        super().__init__(self.loop)
        self.running: dict[str, Work] = {}
        self.dead = False

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        refused(prompt)
        self.start(request_id, self._generate(request_id, prompt))

    def score(self, request_id: str, group: SpanGroup) -> None:
        self.start(request_id, self._score(request_id, group))

    async def _generate(self, name: str, prompt: TokenPrompt) -> AsyncIterator[RequestUpdate]:
        self.running[name] = prompt
        try:
            tokens = completion(prompt)
            for at, token in enumerate(tokens, 1):
                await asyncio.sleep(0)
                if self.dead:
                    raise OSError("the core is gone")
                yield RequestUpdate(name, at == len(tokens), [token])
        finally:
            del self.running[name]

    async def _score(self, name: str, group: SpanGroup) -> AsyncIterator[RequestUpdate]:
        await asyncio.sleep(0)
        yield RequestUpdate(name, is_finished=True, scores=group_scores(group))


class Batches(FixedBatchRequests):
    """The same, a batch at a time."""

    def __init__(self) -> None:
        super().__init__(self._all)
        self.running: dict[str, Work] = {}
        self.dead = False

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        refused(prompt)
        super().generate(request_id, prompt)

    def _all(self, batch: Mapping[str, Work]) -> Iterable[RequestUpdate]:
        for name, work in batch.items():
            if self.dead:
                raise OSError("the core is gone")
            if isinstance(work, SpanGroup):
                yield RequestUpdate(name, is_finished=True, scores=group_scores(work))
            else:
                yield RequestUpdate(name, is_finished=True, token_ids=completion(work))


class Served(TokenSession):
    def __init__(self, runtime: ServingRuntime, *, slots: int = 3, scored_tokens: int = 1000):
        capabilities = frozenset(Capability) - {Capability.ATTACH, Capability.LOGPROBS}
        if isinstance(runtime, FixedBatchRequests):
            capabilities -= {Capability.CONTINUOUS_BATCHING}
        super().__init__(
            engine="Served",
            capabilities=capabilities,
            tokenizer=ByteTokenizer(),
            max_model_len=512,
            batch_size=8,
        )
        self.loop = ServingLoop(runtime, slots=slots, scored_tokens=scored_tokens)
        self.runtime = runtime

    def _release(self) -> None:
        if isinstance(self.runtime, Async):
            self.runtime.loop.close()

    def _generate_tokens(self, feed: TokenFeed) -> Iterator[Sequence[TokenEvent]]:
        return self.loop.generate(feed)

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[Any]:
        return self.loop.score(span_groups(spans, listed_limit=3))
