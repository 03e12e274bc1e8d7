"""The same model on the engine kit: two methods on token ids, and the whole contract holds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from evalution_core import BaseEngine, Capability, ConfigurationError, Model, speed_only
from evalution_enginekit import (
    ByteTokenizer,
    PromptQueue,
    TokenEvent,
    Tokenizer,
    TokenPrompt,
    TokenScore,
    TokenSession,
    TokenSpan,
    bind_tokenizer,
)

CAPABILITIES = frozenset(
    {
        Capability.GENERATE,
        Capability.CHAT,
        Capability.LOGLIKELIHOOD,
        Capability.ROLLING,
        Capability.TOKEN_IDS,
        Capability.LOGPROBS,
        Capability.IGNORE_EOS,
        Capability.TRUNCATION,
        Capability.STREAM,
        Capability.CONTINUOUS_BATCHING,
    }
)


@dataclass(slots=True)
class TokenEngine(BaseEngine):
    smoothing: float = 0.001
    batch_size: int = speed_only(default=8)

    capabilities = CAPABILITIES

    def build(self, model: Model) -> TokenSession:
        file = Path(model.path or "")
        if not file.is_file():
            raise ConfigurationError(f"TokenEngine counts a text file; {model.path!r} is none")
        tokenizer = bind_tokenizer(model, ByteTokenizer())
        return PairSession(file.read_text("utf-8"), tokenizer, self.smoothing, self.batch_size)


class PairSession(TokenSession):
    def __init__(self, text: str, tokenizer: Tokenizer, smoothing: float, batch_size: int):
        super().__init__(
            engine="TokenEngine",
            capabilities=CAPABILITIES,
            tokenizer=tokenizer,
            max_model_len=512,
            batch_size=batch_size,
            dtype="float64",
        )
        ids = tokenizer.encode(text)
        pairs, firsts = Counter(pairwise(ids)), Counter(ids[:-1])
        vocabulary = range(tokenizer.vocabulary_size)
        unseen = [smoothing * (firsts[i] + 1) for i in vocabulary]
        self._rows: list[list[float]] = []
        for first in vocabulary:
            total = firsts[first] + sum(unseen)
            row = [math.log((pairs[first, i] + unseen[i]) / total) for i in vocabulary]
            self._rows.append(row)

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        running: dict[int, tuple[TokenPrompt, int, int]] = {}
        while True:
            for key in feed.cancelled():
                running.pop(key, None)
            for prompt in feed.take(self.preferred_batch_size - len(running)):
                running[prompt.key] = prompt, prompt.token_ids[-1], 0
            if not running:
                return
            events: list[TokenEvent] = []
            for key, (prompt, last, length) in list(running.items()):
                token_id = self._best(last, 1)[0]
                events.append(self._event(prompt, last, token_id))
                running[key] = prompt, token_id, length + 1
                if token_id in prompt.stop_ids or length + 1 >= prompt.max_new_tokens:
                    del running[key]
            yield events

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        yield [self._score(span) for span in spans]

    def _event(self, prompt: TokenPrompt, last: int, token_id: int) -> TokenEvent:
        if prompt.logprobs is None:
            return TokenEvent(prompt.key, [token_id])
        row = self._rows[last]
        top = {best: row[best] for best in self._best(last, prompt.logprobs)}
        return TokenEvent(prompt.key, [token_id], [row[token_id]], [top])

    def _score(self, span: TokenSpan) -> TokenScore:
        steps = list(pairwise(span.token_ids[span.start - 1 :]))
        greedy = all(self._rows[a][b] >= max(self._rows[a]) for a, b in steps)
        return TokenScore([self._rows[a][b] for a, b in steps], greedy)

    def _best(self, last: int, count: int) -> list[int]:
        row = self._rows[last]
        return sorted(range(len(row)), key=lambda token_id: -row[token_id])[:count]
