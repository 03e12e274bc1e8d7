"""SGLang's outputs as updates and scores of the kit."""

from __future__ import annotations

from typing import Any, TypedDict

from evalution_core import EngineRuntimeError, EvalutionError, FinishReason, InvalidRequestError
from evalution_core.redaction import scrub
from evalution_enginekit import TokenPrompt, TokenScore, WrongScoresError
from evalution_enginekit.serving import RequestUpdate, SpanGroup

Entry = tuple[float | None, int, str | None]
"""A log-probability, the token that it belongs to, and the token's text."""

_FINISHED: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
_BAD_REQUEST = 400


class Meta(TypedDict, total=False):
    """`meta_info` of an output, as far as it is read here.

    Entries of the input begin at `logprob_start_len`, where there is no value yet.
    """

    id: str
    finish_reason: dict[str, Any] | None
    cached_tokens: int
    input_token_logprobs: list[Entry]
    input_top_logprobs: list[list[Entry] | None]
    output_token_logprobs: list[Entry]
    output_top_logprobs: list[list[Entry]]
    output_token_ids_logprobs: list[list[Entry]]


class Output(TypedDict):
    """What SGLang tells of one request: of its output, only what is new."""

    output_ids: list[int]
    meta_info: Meta


def generation_update(request_id: str, output: Output, prompt: TokenPrompt) -> RequestUpdate:
    """The new tokens of a prompt, with the log-probabilities that it asks for."""
    meta = output["meta_info"]
    ended = meta.get("finish_reason")
    if ended is None:
        return _tokens(request_id, output, prompt)
    reason = str(ended["type"])
    if reason not in _FINISHED:
        return RequestUpdate(request_id, is_finished=True, error=_refusal(ended))
    update = _tokens(request_id, output, prompt)
    update.is_finished = True
    update.finish = _FINISHED[reason]
    update.runtime = {
        "cached_tokens": meta.get("cached_tokens"),
        "stop_reason": ended.get("matched"),
    }
    return update


def scored_update(request_id: str, output: Output, group: SpanGroup) -> RequestUpdate:
    """The scores of a group, or what is wrong with them."""
    ended = output["meta_info"].get("finish_reason") or {"type": "none"}
    if ended["type"] not in _FINISHED:
        return RequestUpdate(request_id, is_finished=True, error=_refusal(ended))
    try:
        scores = group_scores(output["meta_info"], group)
    except EngineRuntimeError as error:
        return RequestUpdate(request_id, is_finished=True, error=error)
    return RequestUpdate(request_id, is_finished=True, scores=scores)


def group_scores(meta: Meta, group: SpanGroup) -> list[TokenScore]:
    """The scores of the spans of `group`.

    Raises:
        WrongScoresError: an entry that should be there is missing, or belongs to another token.
    """
    inner, inner_is_greedy = _prompt_scores(meta, group)
    listed, likeliest = _last_row(meta)
    runtime = {"cached_tokens": meta.get("cached_tokens")}
    scores: list[TokenScore] = []
    for span in group.spans:
        value = listed.get(span.token_ids[-1])
        if value is None:
            raise WrongScoresError(f"SGLang left out listed token {span.token_ids[-1]}")
        is_greedy = inner_is_greedy and value >= likeliest
        scores.append(TokenScore([*inner, value], is_greedy, runtime))
    return scores


def _last_row(meta: Meta) -> tuple[dict[int, float], float]:
    """The listed tokens' log-probabilities behind all that was fed, and the largest of all."""
    rows, top = meta.get("output_token_ids_logprobs", []), meta.get("output_top_logprobs", [])
    if len(rows) != 1 or len(top) != 1:
        raise WrongScoresError("SGLang gave no log-probabilities of the listed tokens")
    listed = {token_id: value for value, token_id, _ in rows[0] if value is not None}
    return listed, _largest(top[0])


def _prompt_scores(meta: Meta, group: SpanGroup) -> tuple[list[float], bool]:
    """Log-probabilities of what is scored inside of the prompt; whether no token was likelier."""
    if not group.inner:
        return [], True
    entries, top = meta.get("input_token_logprobs", []), meta.get("input_top_logprobs", [])
    if len(entries) != group.inner + 1 or len(top) != len(entries):
        raise WrongScoresError(
            f"{group.inner} prompt log-probabilities and one that is empty were asked for, and "
            f"{len(entries)} came"
        )
    values: list[float] = []
    is_greedy = True
    fed = group.fed[group.start :]
    for expected, (value, token_id, _), best in zip(fed, entries[1:], top[1:], strict=True):
        if token_id != expected:
            raise WrongScoresError(
                f"SGLang's prompt log-probabilities are shifted: token {token_id} where {expected} "
                f"was fed"
            )
        if value is None:
            raise WrongScoresError(f"SGLang gave no log-probability of prompt token {expected}")
        values.append(value)
        is_greedy = value >= _largest(best) and is_greedy
    return values, is_greedy


def _largest(row: list[Entry] | None) -> float:
    values = [value for value, _, _ in row or () if value is not None]
    if not values:
        raise WrongScoresError("SGLang left out the likeliest token of a position")
    return max(values)


def _tokens(request_id: str, output: Output, prompt: TokenPrompt) -> RequestUpdate:
    update = RequestUpdate(request_id, token_ids=output["output_ids"])
    if prompt.logprobs is not None:
        meta = output["meta_info"]
        chosen = meta.get("output_token_logprobs", [])
        update.logprobs = [value for value, _, _ in chosen if value is not None]
        update.top_logprobs = [{} for _ in chosen]
        if prompt.logprobs:
            update.top_logprobs = [
                {token_id: value for value, token_id, _ in row if value is not None}
                for row in meta.get("output_top_logprobs", [])
            ]
    return update


def _refusal(ended: dict[str, Any]) -> EvalutionError:
    told = scrub(str(ended.get("message") or ended["type"]))
    if ended.get("status_code") == _BAD_REQUEST:
        return InvalidRequestError(f"SGLang refuses the request: {told}")
    return EngineRuntimeError(f"SGLang ended the request before it was complete: {told}")
