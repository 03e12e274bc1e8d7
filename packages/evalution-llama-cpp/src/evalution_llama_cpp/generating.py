"""Generation of many prompts in one context: the scheduler over `llama_decode`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from evalution_enginekit import TokenEvent, TokenFeed, TokenPrompt
from evalution_enginekit.planning import shared_prefix
from evalution_enginekit.sampling import TokenChoice
from evalution_llama_cpp.cache_ledger import CacheLedger, Share
from evalution_llama_cpp.context import Context, Logits
from evalution_llama_cpp.scoring import Head

_LEAST_SHARED = 8
"""Tokens from which a shared prefix is worth looking after."""


class Generator:
    """Prompts side by side. Each step decodes the running ones first and fills up with prompts.

    A prompt enters when the cache has room for all of it and of what it may generate. With
    `refill=False` prompts enter only where none runs.
    """

    def __init__(
        self,
        context: Context,
        ledger: CacheLedger,
        *,
        slots: int,
        refill: bool,
        head: Callable[[], Head | None],
        forget_head: Callable[[], None],
    ):
        self._context = context
        self._ledger = ledger
        self._slots = slots
        self._refill = refill
        self._head = head
        self._forget_head = forget_head
        self._running: dict[int, _Sequence] = {}
        self._waiting: deque[_Sequence] = deque()
        self.decoded_tokens = 0

    def run(self, feed: TokenFeed) -> Iterator[Sequence[TokenEvent]]:
        try:
            while True:
                for key in feed.cancelled():
                    self._cancel(key)
                self._admit(feed)
                if self._running:
                    yield self._step()
                elif self._waiting:
                    # Scoring has the cache for now; it gives it back step by step.
                    yield []
                else:
                    return
        finally:
            self._context.batch.clear()
            self._waiting.clear()
            for sequence in list(self._running.values()):
                self._retire(sequence)

    def give_way(self, wanted: Share) -> None:
        """Take the youngest sequences out of the cache until there is room; they begin anew."""
        while self._running and not self._ledger.fits(wanted):
            youngest = next(reversed(self._running.values()))
            self._retire(youngest)
            self._waiting.appendleft(youngest)

    def _cancel(self, key: int) -> None:
        if key in self._running:
            self._retire(self._running[key])
        else:
            self._waiting = deque(each for each in self._waiting if each.prompt.key != key)

    def _admit(self, feed: TokenFeed) -> None:
        if self._running and not self._refill:
            return
        while len(self._running) < self._slots:
            if not self._waiting:
                self._waiting += map(_Sequence, feed.take(1))
            if not self._waiting or not self._entered(self._waiting[0]):
                return
            self._waiting.popleft()

    def _entered(self, sequence: _Sequence) -> bool:
        """Whether the cache had room; then the sequence has what others hold of its prompt."""
        if not self._ledger.reserve(sequence.share):
            self._forget_head()
            if not self._ledger.reserve(sequence.share):
                return False
        sequence.number = self._ledger.take()
        self._share(sequence)
        self._running[sequence.prompt.key] = sequence
        return True

    def _share(self, sequence: _Sequence) -> None:
        """Let a sequence begin with the most that another has of its prompt."""
        held = [(each.token_ids[: each.cached], each.number) for each in self._running.values()]
        if (head := self._head()) is not None:
            held.append((list(head.token_ids), head.sequence))
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
        self._ledger.give_back(sequence.number)
        self._ledger.release(sequence.share)
        sequence.cached = 0

    def _step(self) -> list[TokenEvent]:
        """One decode: the last token of each that generates, then prompts, the oldest first."""
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
    """A prompt and what was generated; the first `cached` of its tokens are in the cache."""

    def __init__(self, prompt: TokenPrompt):
        self.prompt = prompt
        self.token_ids = list(prompt.token_ids)
        # The last token that is generated is never fed.
        self.share = Share(len(prompt.token_ids) + prompt.max_new_tokens - 1)
        self.number = -1
        self.cached = 0
        self.is_done = False
        self._choice = TokenChoice(prompt)

    @property
    def pending(self) -> int:
        return len(self.token_ids) - self.cached

    def take(self, logits: Logits) -> TokenEvent:
        """Choose the next token from its logits [vocabulary]."""
        event = self._choice.take(logits)
        self.token_ids += event.token_ids
        generated = len(self.token_ids) - len(self.prompt.token_ids)
        is_full = generated >= self.prompt.max_new_tokens
        self.is_done = self.token_ids[-1] in self.prompt.stop_ids or is_full
        return event
