"""The loop of a serving runtime: requests by id in, updates by id out, slots refilled at once.

Such a runtime schedules by itself: it batches, pages its cache and shares prefixes. What is left to
an engine is one class that submits a request, advances the runtime, and says what came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from evalution_core import EngineRuntimeError, EvalutionError, FinishReason
from evalution_core.encoding import TokenSpan
from evalution_enginekit.generation import TokenFeed
from evalution_enginekit.tokens import TokenEvent, TokenPrompt, TokenScore, WrongScoresError


@dataclass(slots=True)
class RequestUpdate:
    """What the runtime has told of one request since its last update.

    Args:
        request_id: the id that it was submitted under.
        is_finished: the runtime is rid of it; no update follows.
        token_ids, logprobs, top_logprobs, finish, runtime: as in `TokenEvent`, new tokens only.
        scores: of a `SpanGroup`, one for each of its spans, with the last update.
        error: ends this request alone.
    """

    request_id: str
    is_finished: bool = False
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] | None = None
    top_logprobs: Sequence[dict[int, float]] | None = None
    finish: FinishReason | None = None
    runtime: dict[str, Any] | None = None
    scores: Sequence[TokenScore | EvalutionError] | None = None
    error: EvalutionError | None = None


class ServingRuntime(Protocol):
    """What an engine writes for its runtime. All but `wake` run on the session's runtime thread.

    An `EvalutionError` out of `generate` or `score` is that request's alone. Any other exception,
    and any exception out of `advance`, means that the runtime is broken.
    """

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        """Submit a prompt, to end at its `stop_ids` or limit."""
        ...

    def score(self, request_id: str, group: SpanGroup) -> None:
        """Submit a group of spans."""
        ...

    def advance(self) -> Iterable[RequestUpdate]:
        """Run one step, or wait a moment where requests run by themselves; what came meanwhile."""
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """Let go of unfinished requests: when it returns, the runtime works on none of them."""
        ...

    def wake(self) -> None:
        """From any thread: let an `advance` that waits return; there may be more to do."""
        ...


@dataclass(slots=True)
class _Desk:
    """The requests of one generator that are at the runtime, by id, and what came for them."""

    running: dict[str, Any] = field(default_factory=dict[str, Any])
    updates: list[RequestUpdate] = field(default_factory=list[RequestUpdate])

    def take(self) -> list[RequestUpdate]:
        taken, self.updates = self.updates, []
        return taken


class ServingLoop:
    """Generation and scoring on one runtime, whose steps serve both at once.

    Args:
        runtime: the engine's own part.
        slots: requests of a kind that may be at the runtime; more would only wait there.
        scored_tokens: tokens whose prompt log-probabilities may be in the making at once, which
            bounds the runtime's memory. A single group that has more is submitted alone.
        load: how many such tokens a group has; for a runtime that computes more rows than are
            scored.
    """

    def __init__(
        self,
        runtime: ServingRuntime,
        *,
        slots: int,
        scored_tokens: int,
        load: Callable[[SpanGroup], int] = attrgetter("inner"),
    ):
        self._runtime = runtime
        self._slots = slots
        self._scored_tokens = scored_tokens
        self._load = load
        self._owners: dict[str, _Desk] = {}
        self._numbers = count()

    @property
    def in_flight(self) -> Mapping[str, Any]:
        """What is at the runtime, by request id: the key of a prompt, or a group of spans."""
        return {name: desk.running[name] for name, desk in self._owners.items()}

    def generate(self, feed: TokenFeed) -> Iterator[Sequence[TokenEvent]]:
        """What `_generate_tokens` returns: events of each step until nothing runs."""
        desk = _Desk()
        feed.on_change(self._runtime.wake)
        try:
            while True:
                if dropped := set(feed.cancelled()):
                    names = [name for name, key in desk.running.items() if key in dropped]
                    self._abort(desk, names)
                events = self._admit(desk, feed.take(self._slots - len(desk.running)))
                if not desk.running and not desk.updates and not events:
                    return
                if not desk.updates and not events:
                    self._advance()
                events += [self._event(desk, update) for update in desk.take()]
                yield events
        finally:
            self._abort(desk, list(desk.running))

    def score(self, groups: Sequence[SpanGroup]) -> Iterator[list[TokenScore | EvalutionError]]:
        """What `_score_tokens` returns: the scores of the spans of `groups`, in their order."""
        desk = _Desk()
        waiting = deque(enumerate(groups))
        scored: dict[int, Sequence[TokenScore | EvalutionError]] = {}
        told = 0
        try:
            while told < len(groups):
                self._submit_groups(desk, waiting, scored)
                if desk.running and not desk.updates:
                    self._advance()
                for update in desk.take():
                    if update.is_finished or update.error is not None:
                        at, group = self._leave(desk, update)
                        scored[at] = _scores(group, update)
                ready: list[TokenScore | EvalutionError] = []
                while told in scored:
                    ready += scored.pop(told)
                    told += 1
                yield ready
        finally:
            self._abort(desk, list(desk.running))

    def _admit(self, desk: _Desk, prompts: Sequence[TokenPrompt]) -> list[TokenEvent]:
        """Submit prompts; the events of those that the runtime refuses."""
        refused: list[TokenEvent] = []
        for prompt in prompts:
            name = self._enter(desk, prompt.key)
            try:
                self._runtime.generate(name, prompt)
            except EvalutionError as error:
                self._forget(desk, name)
                refused.append(TokenEvent(prompt.key, error=error))
        return refused

    def _submit_groups(
        self,
        desk: _Desk,
        waiting: deque[tuple[int, SpanGroup]],
        scored: dict[int, Sequence[TokenScore | EvalutionError]],
    ) -> None:
        """Submit groups up to the bounds, in order; refused ones are scored by their error."""
        load = sum(self._load(group) for _, group in desk.running.values())
        while waiting and len(desk.running) < self._slots:
            at, group = waiting[0]
            own = self._load(group)
            if desk.running and own and load + own > self._scored_tokens:
                return
            waiting.popleft()
            name = self._enter(desk, (at, group))
            try:
                self._runtime.score(name, group)
                load += own
            except EvalutionError as error:
                self._forget(desk, name)
                scored[at] = [error] * len(group.spans)

    def _advance(self) -> None:
        for update in self._runtime.advance():
            desk = self._owners.get(update.request_id)
            if desk is not None:  # else it was aborted while the runtime worked on it
                desk.updates.append(update)

    def _event(self, desk: _Desk, update: RequestUpdate) -> TokenEvent:
        key = desk.running[update.request_id]
        if update.is_finished or update.error is not None:
            self._leave(desk, update)
        return TokenEvent(
            key,
            update.token_ids,
            update.logprobs,
            update.top_logprobs,
            update.finish,
            update.error,
            update.runtime,
        )

    def _enter(self, desk: _Desk, what: Any) -> str:
        name = f"evalution-{next(self._numbers)}"
        desk.running[name] = what
        self._owners[name] = desk
        return name

    def _leave(self, desk: _Desk, update: RequestUpdate) -> Any:
        """Forget a request that is over, and end it where the runtime doesn't know that."""
        what = desk.running[update.request_id]
        if update.is_finished:
            self._forget(desk, update.request_id)
        else:
            self._abort(desk, [update.request_id])
        return what

    def _forget(self, desk: _Desk, name: str) -> None:
        del desk.running[name]
        del self._owners[name]

    def _abort(self, desk: _Desk, names: list[str]) -> None:
        if not names:
            return
        finished = {update.request_id for update in desk.updates if update.is_finished}
        desk.updates = [update for update in desk.updates if update.request_id not in names]
        for name in names:
            self._forget(desk, name)
        self._runtime.abort([name for name in names if name not in finished])


def _scores(group: SpanGroup, update: RequestUpdate) -> Sequence[TokenScore | EvalutionError]:
    if update.error is not None:
        return [update.error] * len(group.spans)
    if update.scores is None or len(update.scores) != len(group.spans):
        found = 0 if update.scores is None else len(update.scores)
        error = WrongScoresError(f"{len(group.spans)} spans were asked for and {found} came")
        return [error] * len(group.spans)
    return update.scores


R = TypeVar("R")

_PATIENCE_S = 0.05
"""How long `advance` waits for an update; scoring, which nothing wakes, looks around that often."""


class EventLoopRequests:
    """Requests of a runtime with an async call for each, on one event loop of the runtime thread.

    The loop runs only inside of `advance`, `abort` and `run`; what the runtime does in processes
    or threads of its own goes on meanwhile.

    Args:
        loop: the runtime's own event loop where it has one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._updates: list[RequestUpdate] = []
        self._broken: Exception | None = None
        self._changed = asyncio.Event()

    def start(self, request_id: str, updates: AsyncIterator[RequestUpdate]) -> None:
        """Follow `updates`, the last of which is finished, in the background."""
        self._tasks[request_id] = self._loop.create_task(self._follow(request_id, updates))

    def advance(self) -> list[RequestUpdate]:
        """The updates that came; waits a moment for the first.

        Raises:
            Exception: what a request's iterator raised, unless it was an `EvalutionError`.
        """
        if not self._updates:
            self._loop.run_until_complete(self._wait())
        if self._broken is not None:
            raise self._broken
        updates, self._updates = self._updates, []
        return updates

    def abort(self, request_ids: Sequence[str]) -> None:
        """Cancel the tasks and wait for their end; the runtime's own abort comes before."""
        tasks = [self._tasks.pop(name) for name in request_ids if name in self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))

    def wake(self) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    def run(self, call: Coroutine[Any, Any, R]) -> R:
        """What a coroutine of the runtime (a flush of its cache, say) returns."""
        return self._loop.run_until_complete(call)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    async def _follow(self, request_id: str, updates: AsyncIterator[RequestUpdate]) -> None:
        try:
            finished = False
            async for update in updates:
                finished = update.is_finished
                self._tell(update)
            if not finished:
                raise EngineRuntimeError("the runtime ended a request without finishing it")
        except EvalutionError as error:
            self._tell(RequestUpdate(request_id, is_finished=True, error=error))
        except Exception as error:  # noqa: BLE001 - raised again where the session maps it
            self._broken = error
            self._changed.set()
        finally:
            self._tasks.pop(request_id, None)

    def _tell(self, update: RequestUpdate) -> None:
        self._updates.append(update)
        self._changed.set()


@dataclass(frozen=True, slots=True)
class SpanGroup:
    """Spans that one request scores: all feed `fed` and score the same tokens but for the last.

    The request feeds `fed` and generates one token. The row behind `fed` holds the log-probability
    of every span's last token, `listed`; the rows from `start` on hold what is scored before.
    """

    spans: tuple[TokenSpan, ...]

    @property
    def fed(self) -> Sequence[int]:
        return self.spans[0].fed

    @property
    def start(self) -> int:
        """The first scored token's position in `fed`; `len(fed)` where only the last is scored."""
        return self.spans[0].start

    @property
    def listed(self) -> list[int]:
        """The last token of each span, each once, in their order."""
        return list(dict.fromkeys(span.token_ids[-1] for span in self.spans))

    @property
    def inner(self) -> int:
        """How many tokens inside of `fed` are scored, which takes prompt log-probabilities."""
        return len(self.fed) - self.start


def span_groups(spans: Sequence[TokenSpan], *, listed_limit: int) -> list[SpanGroup]:
    """Neighbours that differ in their last token alone in one group, in the order of `spans`.

    `listed_limit` is how many tokens a request can list; 1 for a runtime that lists none.
    """
    groups: list[list[TokenSpan]] = []
    for span in spans:
        if groups and len(groups[-1]) < listed_limit and _alike(groups[-1][0], span):
            groups[-1].append(span)
        else:
            groups.append([span])
    return [SpanGroup(tuple(group)) for group in groups]


def _alike(one: TokenSpan, other: TokenSpan) -> bool:
    return (
        one.start == other.start
        and len(one.token_ids) == len(other.token_ids)
        and list(one.fed) == list(other.fed)
    )


Work = TokenPrompt | SpanGroup


class FixedBatchRequests:
    """The requests of a runtime that takes a batch and returns when all of it is done.

    Sessions on it don't declare `continuous_batching`: a batch in hand is finished on abort too.

    Args:
        run: runs prompts and groups of spans, by request id, and gives one finished update each.
    """

    def __init__(self, run: Callable[[Mapping[str, Work]], Iterable[RequestUpdate]]):
        self._run = run
        self._waiting: dict[str, Work] = {}

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        self._waiting[request_id] = prompt

    def score(self, request_id: str, group: SpanGroup) -> None:
        self._waiting[request_id] = group

    def advance(self) -> Iterable[RequestUpdate]:
        batch, self._waiting = self._waiting, {}
        return self._run(batch) if batch else ()

    def abort(self, request_ids: Sequence[str]) -> None:
        for name in request_ids:
            self._waiting.pop(name, None)

    def wake(self) -> None:
        """Nothing waits."""
