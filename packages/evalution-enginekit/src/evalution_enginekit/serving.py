"""The request loop of a serving runtime: requests by id in, updates by id out.

Such a runtime schedules by itself: it batches, pages its cache and shares prefixes. An engine adds
one class, a `ServingRuntime`, that submits requests, advances the runtime and returns updates.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from evalution_core import EngineRuntimeError, EvalutionError, InvalidRequestError
from evalution_core.encoding import TokenSpan
from evalution_core.requests import FinishReason
from evalution_enginekit.generation import TokenEvent, TokenPrompt
from evalution_enginekit.planning import TokenScore, WrongScoresError


@dataclass(slots=True)
class RequestUpdate:
    """The progress of one request since its last update.

    Args:
        request_id: the id that it was submitted under.
        is_finished: the runtime has dropped the request; no update follows.
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

    @classmethod
    def from_error(cls, request_id: str, error: EvalutionError) -> RequestUpdate:
        """Return the last update of a request that `error` has ended."""
        return cls(request_id, is_finished=True, error=error)

    @classmethod
    def from_scores(
        cls, request_id: str, read: Callable[[], Sequence[TokenScore]]
    ) -> RequestUpdate:
        """Return the last update of a group: the scores that `read` returns, or its error."""
        try:
            return cls(request_id, is_finished=True, scores=read())
        except EngineRuntimeError as error:
            return cls.from_error(request_id, error)


class PromptSource(Protocol):
    """Source of prompts for `ServingLoop.generate`, as a `PromptQueue` is."""

    def on_change(self, notify: Callable[[], None]) -> None: ...
    def take(self, limit: int) -> list[TokenPrompt]: ...
    def cancelled(self) -> list[int]: ...


class ServingRuntime(Protocol):
    """The engine's own part. All but `wake` run on the session's runtime thread.

    An `EvalutionError` raised by `generate` or `score` is that request's alone. Any other
    exception, and any exception raised by `advance`, means that the runtime is broken.
    """

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        """Submit a prompt, to end at its `stop_ids` or limit."""
        ...

    def score(self, request_id: str, group: SpanGroup) -> None:
        """Submit a group of spans."""
        ...

    def advance(self) -> Iterable[RequestUpdate]:
        """Run one step, or wait a moment where requests run by themselves; return the updates."""
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop unfinished requests: when it returns, the runtime works on none of them."""
        ...

    def wake(self) -> None:
        """Let a waiting `advance` return, since there may be more to do; called on any thread."""
        ...

    def flush(self) -> None:
        """Empty the cache of shared prefixes, if there is one; called while no request runs."""
        ...


@dataclass(slots=True)
class _Pending:
    """The requests of one generator that are at the runtime, by id, with their unread updates."""

    running: dict[str, Any] = field(default_factory=dict[str, Any])
    updates: list[RequestUpdate] = field(default_factory=list[RequestUpdate])

    def take(self) -> list[RequestUpdate]:
        taken, self.updates = self.updates, []
        return taken


_NAME = "evalution-"


class ServingLoop:
    """Generation and scoring on one runtime, whose steps serve both at once.

    Args:
        runtime: the engine's own part.
        slots: requests of a kind that may be at the runtime; more would only wait there.
        scored_tokens: tokens whose prompt log-probabilities may be computed at once, which bounds
            the runtime's memory. A single group that has more is submitted alone.
        count_rows: returns the number of such tokens of a group, for a runtime that computes more
            rows than are scored.
    """

    def __init__(
        self,
        runtime: ServingRuntime,
        *,
        slots: int,
        scored_tokens: int,
        count_rows: Callable[[SpanGroup], int] = attrgetter("inner"),
    ):
        self._runtime = runtime
        self._slots = slots
        self._scored_tokens = scored_tokens
        self._count_rows = count_rows
        self._owners: dict[str, _Pending] = {}
        self._issued = 0

    @property
    def in_flight(self) -> Mapping[str, Any]:
        """The requests at the runtime by id: the key of a prompt, or a group of spans."""
        return {name: pending.running[name] for name, pending in self._owners.items()}

    def generate(self, feed: PromptSource) -> Generator[Sequence[TokenEvent]]:
        """Yield the events of each step until nothing runs, as `_generate_tokens` does."""
        pending = _Pending()
        feed.on_change(self._runtime.wake)
        try:
            while True:
                if dropped := set(feed.cancelled()):
                    names = [name for name, key in pending.running.items() if key in dropped]
                    self._abort(pending, names)
                events = self._admit(pending, feed.take(self._slots - len(pending.running)))
                if not pending.running and not pending.updates and not events:
                    return
                if not pending.updates and not events:
                    self._advance()
                for update in pending.take():
                    if update.request_id in pending.running:  # else an error came before it
                        events.append(self._event(pending, update))
                yield events
        finally:
            self._abort(pending, list(pending.running))

    def score(self, groups: Sequence[SpanGroup]) -> Iterator[list[TokenScore | EvalutionError]]:
        """Yield the scores of the spans of `groups` in their order, as `_score_tokens` does."""
        pending = _Pending()
        waiting = deque(enumerate(groups))
        scored: dict[int, Sequence[TokenScore | EvalutionError]] = {}
        yielded = 0
        try:
            while yielded < len(groups):
                self._submit_groups(pending, waiting, scored)
                if pending.running and not pending.updates:
                    self._advance()
                for update in pending.take():
                    is_over = update.is_finished or update.error is not None
                    if is_over and update.request_id in pending.running:
                        at, group = self._leave(pending, update)
                        scored[at] = _read_scores(group, update)
                ready: list[TokenScore | EvalutionError] = []
                while yielded in scored:
                    ready += scored.pop(yielded)
                    yielded += 1
                yield ready
        finally:
            self._abort(pending, list(pending.running))

    def _admit(self, pending: _Pending, prompts: Sequence[TokenPrompt]) -> list[TokenEvent]:
        """Submit prompts; return the events of those that the runtime refuses."""
        refused: list[TokenEvent] = []
        for prompt in prompts:
            name = self._enter(pending, prompt.key)
            try:
                self._runtime.generate(name, prompt)
            except EvalutionError as error:
                self._forget(pending, name)
                refused.append(TokenEvent(prompt.key, error=error))
        return refused

    def _submit_groups(
        self,
        pending: _Pending,
        waiting: deque[tuple[int, SpanGroup]],
        scored: dict[int, Sequence[TokenScore | EvalutionError]],
    ) -> None:
        """Submit groups up to the bounds, in order; the error of a refused one is its score."""
        rows = sum(self._count_rows(group) for _, group in pending.running.values())
        while waiting and len(pending.running) < self._slots:
            at, group = waiting[0]
            own = self._count_rows(group)
            if pending.running and own and rows + own > self._scored_tokens:
                return
            waiting.popleft()
            name = self._enter(pending, (at, group))
            try:
                self._runtime.score(name, group)
                rows += own
            except EvalutionError as error:
                self._forget(pending, name)
                scored[at] = [error] * len(group.spans)

    def _advance(self) -> None:
        for update in self._runtime.advance():
            pending = self._owners.get(update.request_id)
            if pending is not None:
                pending.updates.append(update)
            elif not self._is_issued(update.request_id):
                raise EngineRuntimeError(f"the runtime answers {update.request_id!r}, no request")

    def _is_issued(self, name: str) -> bool:
        """Report whether a request had that name: it may have been aborted at the runtime."""
        number = name.removeprefix(_NAME)
        return number != name and number.isdecimal() and int(number) < self._issued

    def _event(self, pending: _Pending, update: RequestUpdate) -> TokenEvent:
        key = pending.running[update.request_id]
        if update.is_finished or update.error is not None:
            self._leave(pending, update)
        return TokenEvent(
            key,
            update.token_ids,
            update.logprobs,
            update.top_logprobs,
            update.finish,
            update.error,
            update.runtime,
        )

    def _enter(self, pending: _Pending, request: Any) -> str:
        # None begins another: SGLang 0.5.23 aborts all whose names begin with the one that it gets.
        name = f"{_NAME}{self._issued:012d}"
        self._issued += 1
        pending.running[name] = request
        self._owners[name] = pending
        return name

    def _leave(self, pending: _Pending, update: RequestUpdate) -> Any:
        """Forget a request that is over, and abort it if the runtime still runs it."""
        request = pending.running[update.request_id]
        if update.is_finished:
            self._forget(pending, update.request_id)
        else:
            self._abort(pending, [update.request_id])
        return request

    def _forget(self, pending: _Pending, name: str) -> None:
        del pending.running[name]
        del self._owners[name]

    def _abort(self, pending: _Pending, names: list[str]) -> None:
        if not names:
            return
        finished = {update.request_id for update in pending.updates if update.is_finished}
        pending.updates = [update for update in pending.updates if update.request_id not in names]
        for name in names:
            self._forget(pending, name)
        self._runtime.abort([name for name in names if name not in finished])


def _read_scores(group: SpanGroup, update: RequestUpdate) -> Sequence[TokenScore | EvalutionError]:
    if update.error is not None:
        return [update.error] * len(group.spans)
    if update.scores is None or len(update.scores) != len(group.spans):
        found = 0 if update.scores is None else len(update.scores)
        error = WrongScoresError(
            f"the runtime returned scores of {found} of {len(group.spans)} spans"
        )
        return [error] * len(group.spans)
    return update.scores


R = TypeVar("R")

_PATIENCE_S = 0.05
"""Longest wait of `advance` for an update; scoring, which nothing wakes, goes on that often."""


class EventLoopRequests:
    """Requests of a runtime with an async call for each, on one event loop of the runtime thread.

    The loop runs only inside `advance`, `abort` and `run`; processes and threads of the runtime
    work meanwhile.

    Args:
        loop: runs them: the runtime's own event loop, or a new one.
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
        """Return the new updates; wait a moment for the first.

        Raises:
            Exception: any error of a request's iterator but an `EvalutionError`.
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

    def flush(self) -> None:
        """Do nothing; a runtime with a cache of prefixes empties it here."""

    def run(self, call: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine of the runtime (a flush of its cache, say) and return its result."""
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
                self._add(update)
            if not finished:
                raise EngineRuntimeError("the runtime ended a request without finishing it")
        except EvalutionError as error:
            self._add(RequestUpdate.from_error(request_id, error))
        except Exception as error:  # noqa: BLE001 - raised again where the session maps it
            self._broken = error
            self._changed.set()
        finally:
            self._tasks.pop(request_id, None)

    def _add(self, update: RequestUpdate) -> None:
        self._updates.append(update)
        self._changed.set()


@dataclass(frozen=True, slots=True)
class SpanGroup:
    """Spans that one request scores: all feed `fed` and differ in their last token alone.

    The request feeds `fed` and generates one token. The row after `fed` holds the log-probability
    of every span's last token, `listed`; the rows from `start` on hold those of the tokens before.
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
    def top_logprobs(self) -> int | None:
        """The number of likeliest tokens wanted at each position; such a span is alone."""
        return self.spans[0].top_logprobs

    @property
    def inner(self) -> int:
        """The number of scored tokens inside `fed`, which take prompt log-probabilities."""
        return len(self.fed) - self.start


ServingRequest = TokenPrompt | SpanGroup
P = TypeVar("P")


class FixedBatchRequests(Generic[P]):
    """Requests of a runtime that takes a batch and returns once all of it is done.

    Sessions on it don't declare `continuous_batching`: on abort a batch at the runtime still ends.

    Args:
        prepare: makes a request of the runtime; an `EvalutionError` of it is that request's alone.
        run: runs prepared requests, and yields one finished update for each; raises an
            `InvalidRequestError` where the runtime refuses one of them.
        flush: empties the runtime's cache of prefixes.
    """

    def __init__(
        self,
        prepare: Callable[[str, ServingRequest], P],
        run: Callable[[Sequence[P]], Iterable[RequestUpdate]],
        flush: Callable[[], object] = lambda: None,
    ):
        self._prepare, self._run, self._flush = prepare, run, flush
        self._waiting: dict[str, P] = {}

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        self._waiting[request_id] = self._prepare(request_id, prompt)

    def score(self, request_id: str, group: SpanGroup) -> None:
        self._waiting[request_id] = self._prepare(request_id, group)

    def advance(self) -> Iterable[RequestUpdate]:
        for update in self._run_apart(list(self._waiting)):
            # It waits until it is answered: a failed batch is run again for those who are left.
            self._waiting.pop(update.request_id, None)
            yield update
        if self._waiting:
            raise EngineRuntimeError(f"the runtime left {len(self._waiting)} requests unanswered")

    def _run_apart(self, names: Sequence[str]) -> Iterator[RequestUpdate]:
        """Run a batch; if one is refused, which its error doesn't name, run each one alone."""
        batch = {name: self._waiting[name] for name in names if name in self._waiting}
        try:
            yield from self._run(list(batch.values())) if batch else ()
        except InvalidRequestError as error:
            if len(batch) == 1:
                yield RequestUpdate.from_error(next(iter(batch)), error)
            else:
                for name in batch:
                    yield from self._run_apart([name])

    def abort(self, request_ids: Sequence[str]) -> None:
        for name in request_ids:
            self._waiting.pop(name, None)

    def wake(self) -> None:
        """Do nothing: no call waits."""

    def flush(self) -> None:
        self._flush()
