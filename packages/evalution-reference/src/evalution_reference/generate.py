"""Generation: sequences side by side, one model step for all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from evalution_core.encoding import shared_prefix
from evalution_enginekit import PromptQueue, TokenEvent, TokenPrompt, run_continuous_batching
from evalution_enginekit.sampling import TokenChoice
from evalution_reference.llama import Floats, KVCache, Llama

_PREFIXES_KEPT = 4
_LEAST_SHARED = 8
"""Tokens from which copying a cached prefix is faster than running it again."""


class Generator:
    """Continuous batching: a finished sequence's slot takes the next prompt in the same step."""

    def __init__(self, model: Llama, slots: int):
        self._model = model
        self._slots = slots
        self._prefixes: deque[tuple[Sequence[int], KVCache]] = deque(maxlen=_PREFIXES_KEPT)

    def run(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        return run_continuous_batching(feed, self._slots, self._begin, self._step)

    def forget_prefixes(self) -> None:
        self._prefixes.clear()

    def _begin(self, prompt: TokenPrompt) -> _Sequence:
        """Return a sequence whose cache holds the prefix that an earlier prompt shares with it."""
        best, shared = None, 0
        for token_ids, cache in self._prefixes:
            found = min(shared_prefix(token_ids, prompt.token_ids), len(prompt.token_ids) - 1)
            if found > shared:
                best, shared = cache, found
        if best is None or shared < _LEAST_SHARED:
            return _Sequence(prompt, self._model.new_cache(), list(prompt.token_ids))
        cache = best.fork()
        cache.truncate(shared)
        return _Sequence(prompt, cache, list(prompt.token_ids[shared:]))

    def _step(self, sequences: list[_Sequence]) -> list[TokenEvent]:
        """Run the new tokens of each sequence: a prompt, or the last token that it generated."""
        runs = [np.array(sequence.pending) for sequence in sequences]
        hidden = self._model.extend(runs, [sequence.cache for sequence in sequences])
        ends = np.cumsum([len(run) for run in runs]) - 1
        logits = self._model.logits(hidden[ends])
        for sequence in sequences:
            if sequence.is_fresh and len(sequence.prompt.token_ids) >= _LEAST_SHARED:
                self._remember(sequence)
        return [sequence.take(row) for sequence, row in zip(sequences, logits, strict=True)]

    def _remember(self, sequence: _Sequence) -> None:
        token_ids = sequence.prompt.token_ids
        known = any(
            shared_prefix(kept, token_ids) >= len(token_ids) - 1 for kept, _ in self._prefixes
        )
        if not known:
            self._prefixes.append((token_ids, sequence.cache.fork()))


class _Sequence:
    """One prompt, its cache, and the tokens that the next step has to run."""

    def __init__(self, prompt: TokenPrompt, cache: KVCache, pending: list[int]):
        self.prompt = prompt
        self.cache = cache
        self.pending = pending
        self.is_fresh = True
        self._choice = TokenChoice(prompt)

    @property
    def is_done(self) -> bool:
        return self._choice.is_done

    def take(self, logits: Floats) -> TokenEvent:
        """Choose the next token from its logits [vocab]."""
        event = self._choice.take(logits)
        self.pending = list(event.token_ids)
        self.is_fresh = False
        return event
