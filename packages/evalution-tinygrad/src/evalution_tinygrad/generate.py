"""Generation: sequences side by side, a free row takes the next prompt at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalution_enginekit import (
    PromptQueue,
    Target,
    TokenEvent,
    TokenPrompt,
    TokenSpan,
    plan_scoring,
)
from evalution_enginekit.sampling import TokenChoice
from evalution_tinygrad.kv_cache import Path, Prefixes
from evalution_tinygrad.model import Floats, Forward, Packing, Pass, Run
from evalution_tinygrad.score import PlannedRuns

_ANY_TOKEN = 0
"""Placeholder of the token that a prompt's last row chooses."""


class Generator:
    """Completes prompts; prompts that start together share their common prefixes.

    Args:
        forward: the model.
        packing: runs its passes.
        prefixes: prefixes in its cache.
        rows: prompts that generate at once.
        cache_tokens: tokens of all prompts and completions that run at once; a single one that
            needs more runs alone.
    """

    def __init__(
        self,
        forward: Forward,
        packing: Packing,
        prefixes: Prefixes,
        *,
        rows: int,
        cache_tokens: int,
    ):
        self._forward = forward
        self._packing = packing
        self._prefixes = prefixes
        self._rows = rows
        self._cache_tokens = cache_tokens
        self._running: dict[int, _Sequence] = {}
        self._waiting: list[TokenPrompt] = []

    def run(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        """Yield the events of each step until nothing runs and `feed` is empty."""
        self._running, self._waiting = {}, []
        while True:
            self._drop(feed.cancelled())
            self._waiting += feed.take(self._rows - len(self._running) - len(self._waiting))
            if admitted := self._admit():
                yield from self._begin(admitted, feed)
            elif self._running:
                yield self._step()
            else:
                return

    def _drop(self, keys: Sequence[int]) -> None:
        for key in keys:
            self._running.pop(key, None)
        self._waiting = [prompt for prompt in self._waiting if prompt.key not in keys]

    def _admit(self) -> list[TokenPrompt]:
        """Return the waiting prompts that have room, first come first served."""
        used = sum(_count_tokens(sequence.prompt) for sequence in self._running.values())
        admitted: list[TokenPrompt] = []
        for prompt in self._waiting:
            used += _count_tokens(prompt)
            if used > self._cache_tokens and (admitted or self._running):
                break
            admitted.append(prompt)
        self._waiting = self._waiting[len(admitted) :]
        return admitted

    def _begin(
        self, prompts: Sequence[TokenPrompt], feed: PromptQueue
    ) -> Iterator[Sequence[TokenEvent]]:
        """Run prompts and choose their first tokens; a pass is a step."""
        spans = [
            TokenSpan([*prompt.token_ids, _ANY_TOKEN], len(prompt.token_ids)) for prompt in prompts
        ]
        runs = PlannedRuns(plan_scoring(spans), self._prefixes)
        left = {prompt.key for prompt in prompts}
        for found in self._packing.passes(runs, runs.total):
            begun: list[_Sequence] = []
            for wanted in found.wanted:
                prompt = prompts[wanted.target.span]
                if prompt.key in left:
                    begun.append(_Sequence(prompt, wanted.path.fork()))
                    self._prefixes.remember(prompt.token_ids, wanted.path)
            rows = [w.row for w in found.wanted if prompts[w.target.span].key in left]
            yield self._take(begun, self._logits(found, rows))
            cancelled = feed.cancelled()
            self._drop(cancelled)
            left -= {*cancelled, *(sequence.prompt.key for sequence in begun)}
            if not left:
                return

    def _step(self) -> Sequence[TokenEvent]:
        """Choose the next token of every sequence."""
        sequences = list(self._running.values())
        runs = [
            Run(each.path, [each.last], (Target(each.path.length, _ANY_TOKEN, at, 0),))
            for at, each in enumerate(sequences)
        ]
        events: list[TokenEvent] = []
        for found in self._packing.passes(runs, len(runs)):
            ready = [sequences[wanted.target.span] for wanted in found.wanted]
            events += self._take(ready, self._logits(found, [w.row for w in found.wanted]))
        return events

    def _logits(self, found: Pass, rows: list[int]) -> Floats | tuple[()]:
        return self._forward.logits(found.hidden, rows, self._rows) if rows else ()

    def _take(self, sequences: Sequence[_Sequence], logits: Floats | tuple[()]) -> list[TokenEvent]:
        events = [each.take(row) for each, row in zip(sequences, logits, strict=True)]
        for sequence in sequences:
            if sequence.is_done:
                self._running.pop(sequence.prompt.key, None)
            else:
                self._running[sequence.prompt.key] = sequence
        return events


def _count_tokens(prompt: TokenPrompt) -> int:
    return len(prompt.token_ids) + prompt.max_new_tokens


class _Sequence:
    """One prompt, the path of the tokens already run, and the token to run next."""

    def __init__(self, prompt: TokenPrompt, path: Path):
        self.prompt = prompt
        self.path = path
        self.last = _ANY_TOKEN
        self._choice = TokenChoice(prompt)

    @property
    def is_done(self) -> bool:
        return self._choice.is_done

    def take(self, logits: Floats) -> TokenEvent:
        """Choose the next token from its logits [vocabulary]."""
        event = self._choice.take(logits)
        (self.last,) = event.token_ids
        return event
