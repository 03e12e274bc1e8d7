"""A context and its continuation as ids, by lm-evaluation-harness's rules."""

from __future__ import annotations

from dataclasses import dataclass

from evalution_core import (
    ContextLengthError,
    InvalidRequestError,
    LoglikelihoodRequest,
    Truncation,
)
from evalution_enginekit.tokenizer import (
    Tokenizer,
    conditioning_id,
    encode_with_leading,
)
from evalution_enginekit.tokens import TokenSpan


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """What will be scored, after the left cut; `truncated_tokens` counts what was cut."""

    span: TokenSpan
    truncated_tokens: int

    @property
    def continuation_ids(self) -> list[int]:
        return list(self.span.token_ids[self.span.start :])


class ContextIds:
    """The ids of the last context, which the choices of a question ask for one after the other."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._last: tuple[str, list[int]] = ("", [])

    def of(self, context: str) -> list[int]:
        known, token_ids = self._last
        if context != known or not token_ids:
            token_ids = encode_with_leading(self._tokenizer, context)
            self._last = context, token_ids
        return token_ids


def encode_pair(
    tokenizer: Tokenizer,
    context: str,
    continuation: str,
    *,
    context_ids: ContextIds | None = None,
) -> tuple[list[int], list[int]]:
    """Ids of both sides of `context + continuation`, encoded as one text and then cut.

    All trailing whitespace of the context goes with the continuation. The continuation's ids are
    what the whole text has beyond as many ids as the context alone has, even where a merge crosses
    the cut: lm-eval 0.4.13, `TemplateLM._encode_pair`. An empty context is conditioned on BOS, else
    EOS, unless the continuation begins with it.

    Raises:
        InvalidRequestError: nothing is left to score, or nothing to condition an empty context on.
    """
    kept = context.rstrip()
    continuation = context[len(kept) :] + continuation
    if not kept:
        return condition_on_nothing(tokenizer, tokenizer.encode(continuation))
    before = (context_ids or ContextIds(tokenizer)).of(kept)
    whole = encode_with_leading(tokenizer, kept + continuation)
    return list(before), whole[len(before) :]


def condition_on_nothing(
    tokenizer: Tokenizer, continuation_ids: list[int]
) -> tuple[list[int], list[int]]:
    """The pair for an empty context."""
    prefix = conditioning_id(tokenizer)
    if continuation_ids[:1] == [prefix]:
        return [prefix], continuation_ids[1:]
    return [prefix], continuation_ids


def pair_of(
    tokenizer: Tokenizer,
    request: LoglikelihoodRequest,
    context: str,
    *,
    context_ids: ContextIds | None = None,
) -> tuple[list[int], list[int]]:
    """Ids of a request whose context, if it was messages, is rendered; given ids win."""
    if request.context_input_ids is None and request.continuation_input_ids is None:
        return encode_pair(tokenizer, context, request.continuation, context_ids=context_ids)
    if request.continuation_input_ids is None:
        continuation_ids = tokenizer.encode(request.continuation)
    else:
        continuation_ids = list(request.continuation_input_ids)
    if request.context_input_ids is not None:
        before = list(request.context_input_ids)
    else:
        before = encode_with_leading(tokenizer, context) if context else []
    if not before:
        return condition_on_nothing(tokenizer, continuation_ids)
    return before, continuation_ids


def fit_pair(
    context_ids: list[int],
    continuation_ids: list[int],
    *,
    max_model_len: int,
    truncation: Truncation,
) -> EncodedPair:
    """Cut the context from the left so that the model is fed at most `max_model_len` tokens.

    The last token is scored but not fed, so `max_model_len + 1` ids are kept.

    Raises:
        InvalidRequestError: the continuation has no token of its own.
        ContextLengthError: the continuation alone doesn't fit, or the context would have to be cut
            and `truncation` is "error".
    """
    if not continuation_ids:
        raise InvalidRequestError(
            "the continuation has no token of its own: it is empty, or the tokenizer merged it "
            "into the context; give continuation_input_ids to score ids as they are"
        )
    if len(continuation_ids) > max_model_len:
        raise ContextLengthError(
            f"the continuation has {len(continuation_ids)} tokens and max_model_len is "
            f"{max_model_len}; a continuation is never cut"
        )
    token_ids = context_ids + continuation_ids
    excess = max(0, len(token_ids) - (max_model_len + 1))
    if excess and truncation == "error":
        raise ContextLengthError(
            f"context and continuation have {len(token_ids)} tokens, {excess} more than "
            f"max_model_len={max_model_len} allows, and truncation='error' forbids a cut"
        )
    start = len(context_ids) - excess
    return EncodedPair(TokenSpan(token_ids[excess:], start), excess)
