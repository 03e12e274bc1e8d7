"""vLLM's outputs as updates and scores of the kit."""

from __future__ import annotations

from evalution_core import EngineRuntimeError, FinishReason
from evalution_enginekit import TokenPrompt, TokenScore, WrongScoresError
from evalution_enginekit.serving import RequestUpdate, SpanGroup
from evalution_vllm.upstream import Logprobs, Output

_FINISHED: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


def generation_update(output: Output, prompt: TokenPrompt) -> RequestUpdate:
    """The new tokens of a prompt, with the log-probabilities that it asks for."""
    completion = output.outputs[0]
    logprobs = top = runtime = error = None
    if prompt.logprobs is not None and completion.logprobs is not None:
        logprobs, top = _generated_logprobs(completion.logprobs, prompt.logprobs)
    reason = completion.finish_reason
    if output.finished:
        runtime = {"cached_tokens": output.num_cached_tokens, "stop_reason": completion.stop_reason}
        if reason not in _FINISHED:
            error = EngineRuntimeError(f"vLLM ended the request before it was complete: {reason}")
    return RequestUpdate(
        output.request_id,
        output.finished,
        completion.token_ids,
        logprobs,
        top,
        _FINISHED.get(reason or ""),
        runtime,
        error=error,
    )


def begins_in_time(output: Output, group: SpanGroup) -> bool:
    """Whether the rows that `group` needs were computed, and not taken from the cache without."""
    return not group.inner or (output.num_cached_tokens or 0) < group.start


def group_scores(output: Output, group: SpanGroup) -> list[TokenScore]:
    """The scores of the spans of `group`.

    Raises:
        WrongScoresError: an entry that should be there is missing, or belongs to another token.
    """
    inner, inner_is_greedy = _prompt_scores(output, group)
    last = output.outputs[0].logprobs
    if last is None or len(last) != 1:
        raise WrongScoresError("vLLM gave no log-probabilities of the listed tokens")
    begin, end = last.start_indices[0], last.end_indices[0]
    likeliest = last.logprobs[begin]
    listed = dict(zip(last.token_ids[begin:end], last.logprobs[begin:end], strict=True))
    scores: list[TokenScore] = []
    runtime = {"cached_tokens": output.num_cached_tokens}
    for span in group.spans:
        value = listed.get(span.token_ids[-1])
        if value is None:
            raise WrongScoresError(f"vLLM left out listed token {span.token_ids[-1]}")
        is_greedy = inner_is_greedy and value >= likeliest
        scores.append(TokenScore([*inner, value], is_greedy, runtime))
    return scores


def _prompt_scores(output: Output, group: SpanGroup) -> tuple[list[float], bool]:
    """Log-probabilities of what is scored inside of the prompt; whether no token was likelier."""
    if not group.inner:
        return [], True
    rows, fed = output.prompt_logprobs, group.fed
    if rows is None or len(rows) < group.inner:
        found = 0 if rows is None else len(rows)
        raise WrongScoresError(
            f"{group.inner} prompt log-probabilities were asked for and {found} came"
        )
    values: list[float] = []
    is_greedy = True
    # Counted from the end: a runner may leave out the rows that it took from the cache.
    for position in range(group.start, len(fed)):
        row = rows.start_indices[len(rows) - len(fed) + position]
        if rows.token_ids[row] != fed[position]:
            raise WrongScoresError(
                f"vLLM's prompt log-probabilities are shifted: token {rows.token_ids[row]} where "
                f"{fed[position]} was fed"
            )
        values.append(rows.logprobs[row])
        is_greedy = is_greedy and rows.logprobs[row] >= rows.logprobs[row + 1]
    return values, is_greedy


def _generated_logprobs(found: Logprobs, wanted: int) -> tuple[list[float], list[dict[int, float]]]:
    values: list[float] = []
    top: list[dict[int, float]] = []
    for begin, end in zip(found.start_indices, found.end_indices, strict=True):
        values.append(found.logprobs[begin])
        likeliest = slice(begin + 1, min(end, begin + 1 + wanted))
        top.append(dict(zip(found.token_ids[likeliest], found.logprobs[likeliest], strict=True)))
    return values, top
