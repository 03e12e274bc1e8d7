"""Token pairs to score: the boundary rule and the rolling windows of lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

Pair = tuple[list[int], list[int]]


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> Pair:
    """Context ids with BOS, and the ids that the continuation adds to them.

    Trailing whitespace of the context moves to the continuation; an empty context is BOS alone.
    """
    kept = context.rstrip()
    continuation = context[len(kept) :] + continuation
    context_ids = tokenizer.encode(kept).ids
    return context_ids, tokenizer.encode(kept + continuation).ids[len(context_ids) :]


def truncate_left(pair: Pair, max_model_len: int) -> tuple[Pair, int]:
    """The pair with its context cut so that `max_model_len` tokens are fed, and how many went."""
    context, continuation = pair
    cut = max(0, len(context) + len(continuation) - max_model_len - 1)
    return (context[cut:], continuation), cut


def rolling_windows(ids: Sequence[int], bos: int, max_model_len: int) -> Iterator[Pair]:
    """Disjoint windows that score every id once; each feeds at most `max_model_len` tokens."""
    first = min(max_model_len, len(ids))
    if first:
        yield [bos], list(ids[:first])
    done = first
    while done < len(ids):
        end = min(done + max_model_len, len(ids))
        yield list(ids[end - max_model_len - 1 : done]), list(ids[done:end])
        done = end
