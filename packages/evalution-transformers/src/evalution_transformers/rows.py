"""A prompt that is being completed: what it got so far, and what each step gives it."""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from evalution_core import EngineRuntimeError
from evalution_core.redaction import scrub
from evalution_enginekit import TokenEvent, TokenPrompt
from evalution_transformers.sampling import Choice, top_logprobs

if TYPE_CHECKING:
    from torch import Tensor


class Row:
    """One prompt's tokens, and how its next one is chosen."""

    def __init__(self, prompt: TokenPrompt):
        self.prompt = prompt
        self.generated: list[int] = []
        self.is_done = False
        self._choice = Choice(prompt)

    @property
    def token_ids(self) -> list[int]:
        """All tokens so far, the prompt's and its own."""
        return [*self.prompt.token_ids, *self.generated]

    @property
    def left(self) -> int:
        """How many tokens it may still get."""
        return self.prompt.max_new_tokens - len(self.generated)

    @property
    def is_greedy(self) -> bool:
        return self._choice.is_greedy

    def take(self, logits: Tensor, likeliest: int) -> TokenEvent:
        """Choose the next token from `logits` [vocab], whose largest is at `likeliest`."""
        prompt = self.prompt
        token_id = likeliest if self._choice.is_greedy else self._choice.draw(logits)
        self.generated.append(token_id)
        self.is_done = token_id in prompt.stop_ids or self.left < 1
        if prompt.logprobs is None:
            return TokenEvent(prompt.key, [token_id])
        logprob, top = top_logprobs(logits, token_id, prompt.logprobs)
        return TokenEvent(prompt.key, [token_id], [logprob], [top])


def too_large(error: BaseException) -> EngineRuntimeError:
    """What a prompt is told for which memory ran out though it was alone.

    It is kept as long as the prompt's result, and so must not keep what the failed pass held.
    """
    traceback.clear_frames(error.__traceback__)
    told = EngineRuntimeError(f"memory ran out for this prompt alone: {scrub(str(error))}")
    told.__cause__ = error
    return told


def take_all(rows: Sequence[Row], logits: Tensor) -> list[TokenEvent]:
    """The next token of each row that isn't done, from `logits` [rows, vocab]."""
    likeliest: list[int] = logits.argmax(dim=-1).tolist()
    return [row.take(logits[at], likeliest[at]) for at, row in enumerate(rows) if not row.is_done]
