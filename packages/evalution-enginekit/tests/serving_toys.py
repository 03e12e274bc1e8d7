"""Serving runtimes of three kinds whose every answer can be worked out by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack

from evalution_core import Capability, InvalidRequestError
from evalution_enginekit import ByteTokenizer, TokenPrompt, TokenScore
from evalution_enginekit.runtime import ServingOptions
from evalution_enginekit.serving import (
    EventLoopRequests,
    FixedBatchRequests,
    RequestUpdate,
    ServingRequest,
    ServingRuntime,
    SpanGroup,
)
from evalution_enginekit.serving_session import ServedModel, ServingSession

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


def refuse_loud(prompt: TokenPrompt) -> None:
    if ord(LOUD) in prompt.token_ids:
        raise InvalidRequestError("not so loud")


class Stepping:
    """A token for every prompt and the scores of every group with each step."""

    def __init__(self) -> None:
        self.running: dict[str, ServingRequest] = {}
        self.generated: dict[str, int] = {}
        self.aborted: list[str] = []
        self.batches: list[list[str]] = []
        self.groups: list[SpanGroup] = []
        self.flushes = 0
        self.most_scored = 0
        self.dead = False

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        refuse_loud(prompt)
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
            at = self.generated[name] = self.generated.get(name, 0) + 1
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

    def flush(self) -> None:
        self.flushes += 1


class Async(EventLoopRequests):
    """The same, with a coroutine for each request."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        super().__init__(self.loop)
        self.running: dict[str, ServingRequest] = {}
        self.dead = False

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        refuse_loud(prompt)
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


class Batches(FixedBatchRequests[tuple[str, ServingRequest]]):
    """The same, a batch at a time."""

    def __init__(self) -> None:
        super().__init__(self._prepare_one, self._run_all)
        self.running: dict[str, ServingRequest] = {}
        self.dead = False

    def _prepare_one(self, name: str, work: ServingRequest) -> tuple[str, ServingRequest]:
        if isinstance(work, TokenPrompt):
            refuse_loud(work)
        return name, work

    def _run_all(self, batch: Sequence[tuple[str, ServingRequest]]) -> Iterator[RequestUpdate]:
        for name, work in batch:
            if self.dead:
                raise OSError("the core is gone")
            if isinstance(work, SpanGroup):
                yield RequestUpdate(name, is_finished=True, scores=group_scores(work))
            else:
                yield RequestUpdate(name, is_finished=True, token_ids=completion(work))


class Served(ServingSession):
    """A session on any of them."""

    def __init__(
        self,
        runtime: ServingRuntime,
        *,
        slots: int = 3,
        scored_tokens: int = 1000,
        release: Callable[[], object] = lambda: None,
    ):
        with ExitStack() as resources:
            resources.callback(release)
            if isinstance(runtime, Async):
                resources.callback(runtime.loop.close)
            super().__init__(
                engine="Served",
                capabilities=frozenset(Capability) - {Capability.ATTACH, Capability.LOGPROBS},
                served=ServedModel(runtime, ByteTokenizer(), 512, {"weights": "0a"}),
                requests=runtime,
                options=ServingOptions(batch_size=8, scored_tokens=scored_tokens),
                slots=slots,
                listed_tokens=3,
                dtype="float32",
                execution={"version": "served 1.0"},
                resources=resources,
                fallback="no steps" if isinstance(runtime, FixedBatchRequests) else None,
            )
