"""TensorRT-LLM's outputs as updates and scores of the kit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evalution_core import EngineRuntimeError, FinishReason
from evalution_enginekit import TokenPrompt, TokenScore, WrongScoresError
from evalution_enginekit.serving import RequestUpdate, SpanGroup
from evalution_tensorrt_llm.releases import Reading
from evalution_tensorrt_llm.upstream import Output, Tensor, TokenLogprobs

_FINISHED: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
_ROWS = 64
"""Rows of logits that are turned into log-probabilities at a time."""


def generation_update(request_id: str, output: Output, prompt: TokenPrompt) -> RequestUpdate:
    """The new tokens of a prompt, with the log-probabilities that it asks for."""
    completion = output.outputs[0]
    token_ids = completion.token_ids_diff
    update = RequestUpdate(request_id, output.finished, token_ids)
    if output.finished:
        reason = completion.finish_reason
        update.finish = _FINISHED.get(reason or "")
        update.runtime = _told(output) | {"stop_reason": completion.stop_reason}
        if update.finish is None:
            update.error = EngineRuntimeError(
                f"TensorRT-LLM ended the request before it was complete: {reason}"
            )
            return update
    if prompt.logprobs is not None:
        try:
            update.logprobs, update.top_logprobs = _generated_logprobs(
                token_ids, completion.logprobs_diff, prompt.logprobs
            )
        except EngineRuntimeError as error:
            update.error = error
    return update


def group_scores(output: Output, group: SpanGroup, reading: Reading) -> list[TokenScore]:
    """The scores of the spans of `group`.

    Raises:
        WrongScoresError: an entry that should be there is missing, or belongs to another token.
    """
    return _READERS[reading](output, group)


def scored_ids(group: SpanGroup, reading: Reading) -> list[int]:
    """What is fed to score `group`."""
    if reading is Reading.CONTEXT_LOGITS:
        return list(group.fed)
    (span,) = group.spans
    return list(span.token_ids)


def _from_prompt_logprobs(output: Output, group: SpanGroup) -> list[TokenScore]:
    (span,) = group.spans
    token_ids = span.token_ids
    rows = output.outputs[0].prompt_logprobs
    if rows is None or len(rows) != len(token_ids):
        raise _missing(len(token_ids), 0 if rows is None else len(rows), output)
    values: list[float] = []
    ranks: list[int | None] = []
    for position in range(span.start, len(token_ids)):
        entry = rows[position - 1].get(token_ids[position])
        if entry is None:
            raise WrongScoresError(
                f"TensorRT-LLM's prompt log-probabilities are shifted: token "
                f"{token_ids[position]} isn't among those told for its position {position}"
            )
        values.append(entry.logprob)
        ranks.append(entry.rank)
    is_greedy = None if None in ranks else all(rank == 1 for rank in ranks)
    return [TokenScore(values, is_greedy, _told(output))]


def _from_context_logits(output: Output, group: SpanGroup) -> list[TokenScore]:
    rows = output.context_logits
    # [1, tokens, vocabulary] or without the 1.
    if rows is not None and len(rows.shape) == len(("one", "tokens", "vocabulary")):
        rows = rows[0]
    fed = group.fed
    if rows is None or rows.shape[0] != len(fed):
        raise _missing(len(fed), 0 if rows is None else rows.shape[0], output)
    inner, inner_is_greedy = _scored(rows[group.start - 1 : len(fed) - 1], fed[group.start :])
    last = rows[len(fed) - 1 : len(fed)]
    scores: list[TokenScore] = []
    for span in group.spans:
        (value,), is_greedy = _scored(last, span.token_ids[-1:])
        scores.append(TokenScore([*inner, value], inner_is_greedy and is_greedy, _told(output)))
    return scores


def _scored(rows: Tensor, token_ids: Any) -> tuple[list[float], bool]:
    """Log-probabilities of `token_ids` under `rows`, in float32; whether none was likelier."""
    values: list[float] = []
    is_greedy = True
    for begin in range(0, len(token_ids), _ROWS):
        targets = np.asarray(token_ids[begin : begin + _ROWS])
        logits: Any = rows[begin : begin + _ROWS].float().numpy()
        chosen = logits[np.arange(len(targets)), targets]
        top = logits.max(axis=-1)
        weights = np.exp(logits - top[:, None])
        values += ((chosen - top) - np.log(weights.sum(axis=-1))).tolist()
        is_greedy = is_greedy and bool((chosen >= top).all())
    return values, is_greedy


_Reader = Callable[[Output, SpanGroup], list[TokenScore]]
_READERS: dict[Reading, _Reader] = {
    Reading.PROMPT_LOGPROBS: _from_prompt_logprobs,
    Reading.CONTEXT_LOGITS: _from_context_logits,
}


def _missing(wanted: int, found: int, output: Output) -> WrongScoresError:
    cached = output.cached_tokens
    return WrongScoresError(
        f"TensorRT-LLM computed rows for {found} of {wanted} scored tokens"
        + (f"; {cached} came from the cache" if cached else "")
    )


def _generated_logprobs(
    token_ids: list[int], entries: TokenLogprobs, wanted: int
) -> tuple[list[float], list[dict[int, float]]]:
    values: list[float] = []
    top: list[dict[int, float]] = []
    if len(entries) != len(token_ids):
        raise WrongScoresError(
            f"TensorRT-LLM told {len(entries)} log-probabilities of {len(token_ids)} tokens"
        )
    for token_id, entry in zip(token_ids, entries, strict=True):
        if token_id not in entry:
            raise WrongScoresError(
                f"TensorRT-LLM told no log-probability of generated token {token_id}"
            )
        values.append(entry[token_id].logprob)
        likeliest = sorted(entry.items(), key=lambda item: -item[1].logprob)[:wanted]
        top.append({candidate: told.logprob for candidate, told in likeliest})
    return values, top


def _told(output: Output) -> dict[str, Any]:
    return {"cached_tokens": output.cached_tokens}
