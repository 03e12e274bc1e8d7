"""The types below the seam: prompts and spans in, events and scores out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from evalution_core import EngineRuntimeError, EvalutionError
from evalution_core.requests import FinishReason


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt as ids, with all that decides its completion.

    A completion ends by itself at a token of `stop_ids` or after `max_new_tokens`. Stop strings
    aren't here: the kit matches them and then cancels the key.
    """

    key: int
    token_ids: Sequence[int]
    max_new_tokens: int
    stop_ids: frozenset[int] = frozenset()
    do_sample: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    num_beams: int = 1
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    """For a runtime that can end early by text; the kit cuts the text whether it does or not."""


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Tokens that one runtime step gave one prompt.

    `logprobs` and `top_logprobs` run beside `token_ids` where the prompt asks for them. `finish`
    is needed only where the runtime ends for a reason of its own. `error` ends this prompt alone.
    """

    key: int
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] | None = None
    top_logprobs: Sequence[dict[int, float]] | None = None
    finish: FinishReason | None = None
    error: EvalutionError | None = None
    runtime: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TokenScore:
    """Natural-log probabilities of the scored tokens, in order.

    `is_greedy`: no token had a strictly larger logit at any of the positions; None if unknown.
    """

    logprobs: Sequence[float]
    is_greedy: bool | None = None
    runtime: dict[str, Any] | None = field(default=None)


class WrongScoresError(EngineRuntimeError):
    """A runtime returned other scores than were asked for: fewer, or of other tokens.

    It works, and can't be trusted: in the self check this is a failure, where other errors of a
    runtime are raised.
    """
