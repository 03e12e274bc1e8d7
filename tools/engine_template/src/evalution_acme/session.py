"""The calls into Acme."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Any, Protocol

from evalution_core import Capability
from evalution_enginekit import (
    PromptQueue,
    TokenEvent,
    Tokenizer,
    TokenPrompt,
    TokenScore,
    TokenSession,
    TokenSpan,
    run_continuous_batching,
)


class LoadedModel(Protocol):
    """The part of a model of Acme's that the session uses."""

    def logprobs(self, token_ids: Sequence[int]) -> Sequence[float]:
        """Natural-log probability of each id of the vocabulary to come next."""
        ...

    def free(self) -> None: ...


@dataclass(slots=True)
class _Sequence:
    prompt: TokenPrompt
    token_ids: list[int]
    generated: int = 0

    @classmethod
    def of(cls, prompt: TokenPrompt) -> _Sequence:
        return cls(prompt, list(prompt.token_ids))

    @property
    def is_done(self) -> bool:
        limit = self.generated >= self.prompt.max_new_tokens
        return limit or (self.generated > 0 and self.token_ids[-1] in self.prompt.stop_ids)


class AcmeSession(TokenSession):
    """A model in Acme. One token of every running sequence is one step."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        tokenizer: Tokenizer,
        capabilities: frozenset[Capability],
        device: str,
        max_model_len: int,
        batch_size: int,
    ):
        super().__init__(
            engine="Acme",
            capabilities=capabilities,
            tokenizer=tokenizer,
            max_model_len=max_model_len,
            batch_size=batch_size,
        )
        self._model = model
        self._device = device

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        return run_continuous_batching(feed, self._batch_size, _Sequence.of, self._step)

    def _score_tokens(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        yield [self._score(span) for span in spans]

    def _release(self) -> None:
        self._model.free()

    def _describe(self) -> dict[str, Any]:
        return {"device": self._device}

    def _step(self, sequences: list[_Sequence]) -> list[TokenEvent]:
        return [self._advance(sequence) for sequence in sequences]

    def _advance(self, sequence: _Sequence) -> TokenEvent:
        row = self._model.logprobs(sequence.token_ids)
        asked = sequence.prompt.logprobs
        best = nlargest(max(1, asked or 0), range(len(row)), key=row.__getitem__)
        sequence.token_ids.append(best[0])
        sequence.generated += 1
        if asked is None:
            return TokenEvent(sequence.prompt.key, best[:1])
        top = {token_id: row[token_id] for token_id in best[:asked]}
        return TokenEvent(sequence.prompt.key, best[:1], [row[best[0]]], [top])

    def _score(self, span: TokenSpan) -> TokenScore:
        rows = [
            self._model.logprobs(span.token_ids[:at])
            for at in range(span.start, len(span.token_ids))
        ]
        chosen = span.token_ids[span.start :]
        return TokenScore(
            [row[token_id] for row, token_id in zip(rows, chosen, strict=True)],
            all(row[token_id] >= max(row) for row, token_id in zip(rows, chosen, strict=True)),
        )
