"""A long text as windows in which each token is scored exactly once."""

from __future__ import annotations

from evalution_core import InvalidRequestError
from evalution_enginekit.tokenizer import Tokenizer, conditioning_id
from evalution_enginekit.tokens import TokenSpan


def rolling_windows(token_ids: list[int], prefix_id: int, max_model_len: int) -> list[TokenSpan]:
    """Spans that cover `token_ids`; each feeds at most `max_model_len` tokens.

    The first window is conditioned on `prefix_id`, a later one on the one token before it; only the
    last, where it is short, reaches further back to fill the window. These are the windows of
    lm-eval 0.4.13: `get_rolling_token_windows(context_len=1)` with `make_disjoint_window`.
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


def rolling_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of the text to score: without the leading ids, which are conditioned on, never scored."""
    return without_leading(tokenizer, tokenizer.encode(text))


def without_leading(tokenizer: Tokenizer, token_ids: list[int]) -> list[int]:
    """`token_ids` without the leading ids or the conditioning token at their beginning.

    Raises:
        InvalidRequestError: nothing is left to score.
    """
    leading = list(tokenizer.leading_ids) or [conditioning_id(tokenizer)]
    kept = token_ids[len(leading) :] if token_ids[: len(leading)] == leading else token_ids
    if not kept:
        raise InvalidRequestError("a rolling request needs at least one token of text to score")
    return kept
