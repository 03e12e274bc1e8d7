"""Generation of many prompts in one context: continuous batching over `llama_decode`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from evalution_core.encoding import shared_prefix
from evalution_enginekit import PromptQueue, TokenEvent, TokenPrompt
from evalution_enginekit.sampling import TokenChoice
from evalution_llama_cpp.context import Context, KVCacheBudget, Logits, Reservation
from evalution_llama_cpp.score import SharedPrefix

_LEAST_SHARED = 8
"""Tokens from which sharing a prefix is worth a copy."""


class Generator:
    """Runs prompts side by side; each step decodes running ones first and fills up with prompts.

    A prompt is admitted when the cache has room for it and for all that it may generate. With
    `continuous=False` prompts are admitted only when none runs.
    """

    def __init__(
        self,
        context: Context,
        budget: KVCacheBudget,
        *,
        slots: int,
        continuous: bool,
        prefix: Callable[[], SharedPrefix | None],
        forget_prefix: Callable[[], None],
    ):
        self._context = context
        self._budget = budget
        self._slots = slots
        self._continuous = continuous
        self._prefix = prefix
        self._forget_prefix = forget_prefix
        self._running: dict[int, _Sequence] = {}
        self._waiting: deque[_Sequence] = deque()
        self.decoded_tokens = 0

    def run(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        try:
            while True:
                for key in feed.cancelled():
                    self._cancel(key)
                self._admit(feed)
                if self._running:
                    yield self._step()
                elif self._waiting:
                    # Scoring holds the cache and releases it step by step.
                    yield []
                else:
                    return
        finally:
            self._context.batch.clear()
            self._waiting.clear()
            for sequence in list(self._running.values()):
                self._retire(sequence)

    def make_room(self, wanted: Reservation) -> None:
        """Remove the youngest sequences from the cache until there is room; they start over."""
        while self._running and not self._budget.has_room(wanted):
            youngest = next(reversed(self._running.values()))
            self._retire(youngest)
            self._waiting.appendleft(youngest)

    def _cancel(self, key: int) -> None:
        if key in self._running:
            self._retire(self._running[key])
        else:
            self._waiting = deque(each for each in self._waiting if each.prompt.key != key)

    def _admit(self, feed: PromptQueue) -> None:
        if self._running and not self._continuous:
            return
        while len(self._running) < self._slots:
            if not self._waiting:
                self._waiting += map(_Sequence, feed.take(1))
            if not self._waiting or not self._start(self._waiting[0]):
                return
            self._waiting.popleft()

    def _start(self, sequence: _Sequence) -> bool:
        """Give the sequence cells and a prefix held by others; return whether there was room."""
        if not self._budget.reserve(sequence.reservation):
            self._forget_prefix()
            if not self._budget.reserve(sequence.reservation):
                return False
        sequence.number = self._budget.take_sequence()
        self._share(sequence)
        self._running[sequence.prompt.key] = sequence
        return True

    def _share(self, sequence: _Sequence) -> None:
        """Copy to a sequence the longest prefix of its prompt that another one holds."""
        held = [(each.token_ids[: each.cached], each.number) for each in self._running.values()]
        if (prefix := self._prefix()) is not None:
            held.append((list(prefix.token_ids), prefix.sequence))
        most = len(sequence.token_ids) - 1
        shared = [
            (min(shared_prefix(ids, sequence.token_ids), most), number) for ids, number in held
        ]
        for count, number in sorted(shared, reverse=True):
            if count < _LEAST_SHARED:
                return
            if self._context.can_fork(number, count):
                self._context.copy(number, sequence.number, count)
                sequence.cached = count
                return

    def _retire(self, sequence: _Sequence) -> None:
        del self._running[sequence.prompt.key]
        self._budget.free_sequence(sequence.number)
        self._budget.release(sequence.reservation)
        sequence.cached = 0

    def _step(self) -> list[TokenEvent]:
        """Decode the last token of each generating sequence, then prompts, the oldest first."""
        batch = self._context.batch
        rows: list[tuple[_Sequence, int]] = []
        for sequence in sorted(self._running.values(), key=lambda each: each.pending > 1):
            count = min(sequence.pending, batch.room)
            if not count:
                break
            begin, end = sequence.cached, sequence.cached + count
            wanted = [count - 1] if end == len(sequence.token_ids) else []
            run = sequence.token_ids[begin:end]
            row = batch.add(run, begin, sequence.number, wanted)
            sequence.cached = end
            if wanted:
                rows.append((sequence, row))
        self.decoded_tokens += batch.length
        logits = self._context.decode()
        events = [sequence.take(logits[row]) for sequence, row in rows]
        for sequence, _ in rows:
            if sequence.is_done:
                self._retire(sequence)
        return events


class _Sequence:
    """A prompt with its completion; the first `cached` of the tokens are in the KV cache."""

    def __init__(self, prompt: TokenPrompt):
        self.prompt = prompt
        self.token_ids = list(prompt.token_ids)
        # The last generated token is never fed.
        self.reservation = Reservation(len(prompt.token_ids) + prompt.max_new_tokens - 1)
        self.number = -1
        self.cached = 0
        self._choice = TokenChoice(prompt)

    @property
    def pending(self) -> int:
        return len(self.token_ids) - self.cached

    @property
    def is_done(self) -> bool:
        return self._choice.is_done

    def take(self, logits: Logits) -> TokenEvent:
        """Choose the next token from its logits [vocabulary]."""
        event = self._choice.take(logits)
        self.token_ids += event.token_ids
        return event
