"""Requests as token ids, so that two engines are asked exactly the same.

The rules are those of the engine kit, which engines apply to text themselves; here they are applied
once, with the tokenizer of one session, and the ids go to both.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, TypeGuard

from evalution_core import (
    BaseInferenceSession,
    GenerationRequest,
    HasTokenizer,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
    SpecialTokens,
    TextCodec,
)
from evalution_core.requests import Request

Ids: TypeAlias = "array[int]"


class Tokenizer(TextCodec, SpecialTokens, Protocol):
    """What is needed of a session's tokenizer."""


@dataclass(frozen=True, slots=True)
class RequestIds:
    """A request's ids: a prompt, a text, or a continuation after its context."""

    token_ids: Ids
    context_ids: Ids | None = None


class Encoder:
    """Encodes requests with one tokenizer; from any thread, but from one at a time."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._context = ""
        self._context_ids: Ids = array("q")

    def encode(self, request: Request) -> RequestIds | None:
        """The ids, or None for a request that each engine has to encode itself.

        That is one with messages, which need a chat template, one that has ids already, and one
        that no engine could serve.
        """
        match request:
            case GenerationRequest():
                text = request.rendered_prompt
                if text is None and request.messages is None:
                    text = request.prompt
                if text is None or request.input_ids is not None:
                    return None
                return self._alone(self._with_leading(text) or self._for_nothing())
            case LoglikelihoodRequest():
                given = (request.context_input_ids, request.continuation_input_ids)
                is_text = given == (None, None) and request.messages is None
                if not is_text or not request.continuation:
                    return None
                return self._pair(request.context, request.continuation)
            case RollingLoglikelihoodRequest():
                if request.input_ids is not None:
                    return None
                return self._alone(self._tokenizer.encode(request.text))

    def _alone(self, token_ids: Sequence[int]) -> RequestIds | None:
        return RequestIds(array("q", token_ids)) if token_ids else None

    def _pair(self, context: str, continuation: str) -> RequestIds | None:
        """Encoded as one text and cut where the context ends, whose last blanks move over."""
        kept = context.rstrip()
        moved = context[len(kept) :] + continuation
        if kept:
            before = self._context_of(kept)
            after = self._with_leading(kept + moved)[len(before) :]
        else:
            before = array("q", self._for_nothing())
            after = self._tokenizer.encode(moved)
            after = after[1:] if before and after[:1] == [before[0]] else after
        if not before or not after:
            return None
        return RequestIds(array("q", after), before)

    def _context_of(self, text: str) -> Ids:
        """The choices of a question share one array."""
        if text != self._context or not self._context_ids:
            self._context, self._context_ids = text, array("q", self._with_leading(text))
        return self._context_ids

    def _with_leading(self, text: str) -> list[int]:
        token_ids, leading = self._tokenizer.encode(text), list(self._tokenizer.leading_ids)
        return token_ids if token_ids[: len(leading)] == leading else leading + token_ids

    def _for_nothing(self) -> list[int]:
        """What an empty context is conditioned on: BOS, else EOS, if there is one."""
        known = (self._tokenizer.bos_id, self._tokenizer.eos_id)
        return [token_id for token_id in known if token_id is not None][:1]


def encoder_of(session: BaseInferenceSession) -> Encoder | None:
    """An encoder with the session's tokenizer; None where it doesn't let callers have one."""
    if not isinstance(session, HasTokenizer):
        return None
    tokenizer = session.tokenizer
    return Encoder(tokenizer) if _is_whole(tokenizer) else None


def with_ids(request: Request, ids: RequestIds | None) -> Request:
    """`request` asked by ids; by text where there are none."""
    if ids is None:
        return request
    token_ids = ids.token_ids.tolist()
    if not isinstance(request, LoglikelihoodRequest):
        return replace(request, input_ids=token_ids)
    context_ids = [] if ids.context_ids is None else ids.context_ids.tolist()
    return replace(request, context_input_ids=context_ids, continuation_input_ids=token_ids)


def _is_whole(tokenizer: TextCodec) -> TypeGuard[Tokenizer]:
    return isinstance(tokenizer, SpecialTokens)
