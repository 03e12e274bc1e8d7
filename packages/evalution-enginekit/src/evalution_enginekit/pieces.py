"""The types between the kit and a runtime that is asked for whole requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evalution_core import FinishReason, GenerationRequest, TextDelta


@dataclass(frozen=True, slots=True)
class RequestPrompt:
    """A validated request, with its prompt as far as it is the kit's to make.

    `token_ids` are what to feed, where they were given or the session encodes; `text` is what is
    completed, None where the runtime renders `request.messages` itself. `stop_ids` are the
    tokenizer's end-of-sequence ids, empty with `ignore_eos`. `is_live`: pieces are wanted as they
    come, not only at the end.
    """

    request: GenerationRequest
    text: str | None = None
    token_ids: Sequence[int] | None = None
    truncated_tokens: int | None = None
    stop_ids: frozenset[int] = frozenset()
    is_live: bool = False


@dataclass(frozen=True, slots=True)
class CompletionPiece:
    """The next part of a completion; one piece may be the whole of it.

    With `text`, that is the completion's text, and `token_ids` are told only where they are the
    contract's: neither EOS nor a stop string's own. Without, the session's tokenizer reads the
    text from `token_ids`, which then are all that were generated. The last piece has `finish`.
    The counts, `prompt` (what was completed, as text) and `runtime` may come with any piece.
    """

    text: str | None = None
    token_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    top_logprobs: Sequence[dict[int, float]] | None = None
    finish: FinishReason | None = None
    prompt: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    truncated_tokens: int | None = None
    runtime: dict[str, Any] | None = None


def joined(earlier: object, later: object) -> TextDelta:
    """Two unread deltas of a request as one."""
    assert isinstance(earlier, TextDelta)
    assert isinstance(later, TextDelta)
    return TextDelta(earlier.text + later.text, earlier.token_ids + later.token_ids)
