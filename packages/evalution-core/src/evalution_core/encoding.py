"""Texts as token ids: the one rule of boundary, leading ids, left cut and windows.

Pure functions on a `TextCodec`. Every engine that encodes, the parity check and the bridges use
them, so that a request has the same ids everywhere. The rules are those of lm-evaluation-harness
0.4.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import compress, count
from operator import ne

from evalution_core.errors import ContextLengthError, InvalidRequestError
from evalution_core.requests import LoglikelihoodRequest, Truncation
from evalution_core.session import TextCodec

_KEPT_CONTEXTS = 16
"""As many as threads that encode side by side."""


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Score `token_ids[start:]`, each token given all before it; `start` is at least 1.

    The last token is scored but not fed, so the model sees `len(token_ids) - 1` tokens.
    `top_logprobs` asks for so many of the most likely tokens at each position.
    """

    token_ids: Sequence[int]
    start: int
    top_logprobs: int | None = None

    @property
    def fed(self) -> Sequence[int]:
        return self.token_ids[:-1]


@dataclass(frozen=True, slots=True)
class FittedPair:
    """A context and its continuation after the left cut.

    `truncated_tokens` counts the tokens of the context that were cut.
    """

    span: TokenSpan
    truncated_tokens: int


def encode_with_leading(codec: TextCodec, text: str) -> list[int]:
    """Return the ids of `text` after the leading ids, which are never doubled.

    A text that spells the beginning-of-text token itself, as rendered chat does, has it once.
    """
    return add_leading(codec, codec.encode(text))


def add_leading(codec: TextCodec, token_ids: list[int]) -> list[int]:
    """Return `token_ids` after the leading ids, unless they begin with them."""
    leading = list(codec.leading_ids)
    return token_ids if token_ids[: len(leading)] == leading else leading + token_ids


def strip_leading(codec: TextCodec, token_ids: list[int]) -> list[int]:
    """Return `token_ids` without the leading ids, or the conditioning id, at their beginning.

    These are never scored.

    Raises:
        InvalidRequestError: nothing is left to score.
    """
    leading = list(codec.leading_ids) or [conditioning_id(codec)]
    kept = token_ids[len(leading) :] if token_ids[: len(leading)] == leading else token_ids
    if not kept:
        raise InvalidRequestError("a rolling request needs at least one token of text to score")
    return kept


def conditioning_id(codec: TextCodec) -> int:
    """Return the id that stands for an empty context: BOS, else EOS.

    Raises:
        InvalidRequestError: the tokenizer has neither.
    """
    for token_id in (codec.bos_id, codec.eos_id):
        if token_id is not None:
            return token_id
    raise InvalidRequestError(
        "an empty context needs a BOS or EOS token to stand for it, and this tokenizer has "
        "neither; give context_input_ids"
    )


class ContextEncoder:
    """Encodes contexts, and keeps the ids of the last ones: choices of a question share one."""

    def __init__(self, codec: TextCodec):
        self._encode = lru_cache(_KEPT_CONTEXTS)(partial(encode_with_leading, codec))

    def encode(self, context: str) -> list[int]:
        """Ids of the context after the leading ids; not to be changed."""
        return self._encode(context)


def encode_pair(
    codec: TextCodec,
    context: str,
    continuation: str,
    *,
    contexts: ContextEncoder | None = None,
) -> tuple[list[int], list[int]]:
    """Return the ids of both sides of `context + continuation`, encoded as one text and then cut.

    All trailing whitespace of the context goes with the continuation. The continuation's ids are
    what the whole text has beyond as many ids as the context alone has, even where a merge crosses
    the cut: lm-eval's `TemplateLM._encode_pair`. An empty context, or one without ids, is
    conditioned on BOS, else EOS, unless the continuation begins with it. `contexts` saves encoding
    a context again.

    Raises:
        InvalidRequestError: nothing to condition an empty context on.
    """
    kept = context.rstrip()
    before = (contexts or ContextEncoder(codec)).encode(kept) if kept else []
    if not before:
        return condition_empty_context(codec, codec.encode(context + continuation))
    whole = encode_with_leading(codec, context + continuation)
    return list(before), whole[len(before) :]


def condition_empty_context(
    codec: TextCodec, continuation_ids: list[int]
) -> tuple[list[int], list[int]]:
    """Return the ids of both sides for a continuation that has no context."""
    prefix = conditioning_id(codec)
    if continuation_ids[:1] == [prefix]:
        return [prefix], continuation_ids[1:]
    return [prefix], continuation_ids


def encode_request(
    codec: TextCodec,
    request: LoglikelihoodRequest,
    context: str,
    *,
    contexts: ContextEncoder | None = None,
) -> tuple[list[int], list[int]]:
    """Return the ids of both sides of a request; given ids are taken as they are.

    `context` is the request's own, or its messages rendered.
    """
    if request.context_input_ids is None and request.continuation_input_ids is None:
        return encode_pair(codec, context, request.continuation, contexts=contexts)
    if request.continuation_input_ids is None:
        continuation_ids = codec.encode(request.continuation)
    else:
        continuation_ids = list(request.continuation_input_ids)
    if request.context_input_ids is not None:
        before = list(request.context_input_ids)
    else:
        before = encode_with_leading(codec, context) if context else []
    if not before:
        return condition_empty_context(codec, continuation_ids)
    return before, continuation_ids


def fit_pair(
    context_ids: list[int],
    continuation_ids: list[int],
    *,
    max_model_len: int,
    truncation: Truncation,
) -> FittedPair:
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
    return FittedPair(TokenSpan(token_ids[excess:], start), excess)


def rolling_windows(token_ids: list[int], prefix_id: int, max_model_len: int) -> list[TokenSpan]:
    """Return spans that cover `token_ids`; each feeds at most `max_model_len` tokens.

    The first window is conditioned on `prefix_id`, a later one on the one token before it; only the
    last, where it is short, reaches further back to fill the window: lm-eval's
    `get_rolling_token_windows(context_len=1)` with `make_disjoint_window`.
    """
    first = token_ids[:max_model_len]
    windows = [TokenSpan([prefix_id, *first], 1)] if first else []
    done = len(first)
    while done < len(token_ids):
        end = min(done + max_model_len, len(token_ids))
        begin = end - max_model_len - 1
        windows.append(TokenSpan(token_ids[begin:end], done - begin))
        done = end
    return windows


def shared_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the number of tokens that two sequences share at their beginning."""
    return next(compress(count(), map(ne, left, right)), min(len(left), len(right)))
