"""`/v1/eval/loglikelihood` and `/v1/eval/loglikelihood/rolling`: the contract's scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired

from typing_extensions import TypedDict

from evalution_core import (
    EvalutionError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_openai.server.bodies import (
    LoglikelihoodBody,
    LoglikelihoodItem,
    RollingBody,
    RollingItem,
)
from evalution_openai.server.errors import ErrorDetail, Problem, problem_of, unsupported
from evalution_openai.server.prompts import check_count, dumped
from evalution_openai.server.serving import Served

_OWN_VARIABLES = (
    "a context is rendered with the variables that the server was started with; leave "
    "chat_template_kwargs out, or send the rendered text as context"
)


class RollingAnswer(TypedDict):
    """A score; in a batch, `error` may stand in place of all the others."""

    logprob: NotRequired[float]
    token_count: NotRequired[int]
    token_ids: NotRequired[list[int] | None]
    token_logprobs: NotRequired[list[float] | None]
    error: NotRequired[ErrorDetail]


class LoglikelihoodAnswer(RollingAnswer):
    is_greedy: NotRequired[bool | None]
    prompt_tokens: NotRequired[int | None]
    truncated_tokens: NotRequired[int | None]


class LoglikelihoodBatch(TypedDict):
    results: list[LoglikelihoodAnswer]


class RollingBatch(TypedDict):
    results: list[RollingAnswer]


async def loglikelihood(served: Served, body: LoglikelihoodBody) -> dict[str, Any]:
    """Score continuations given their contexts: one, or `requests`."""
    if body.chat_template_kwargs:
        raise unsupported(_OWN_VARIABLES, param="chat_template_kwargs")
    items = _items(body.requests, body, served)
    admitted = [_admitted(served.admission.loglikelihood, _pair, item) for item in items]
    return await _answered(served.loglikelihood.results, admitted, body.requests is None, _shown)


async def rolling(served: Served, body: RollingBody) -> dict[str, Any]:
    """Score texts as a whole: one, or `requests`."""
    items = _items(body.requests, body, served)
    admitted = [_admitted(served.admission.rolling, _text, item) for item in items]
    return await _answered(served.rolling.results, admitted, body.requests is None, _shown_whole)


def _items(requests: Sequence[Any] | None, body: Any, served: Served) -> Sequence[Any]:
    if requests is None:
        return [body]
    check_count(len(requests), served)
    return requests


def _pair(item: LoglikelihoodItem) -> LoglikelihoodRequest:
    if item.chat_template_kwargs:
        raise UnsupportedRequestError(_OWN_VARIABLES)
    return LoglikelihoodRequest(
        context=item.context or "",
        continuation=item.continuation or "",
        context_input_ids=item.context_input_ids,
        continuation_input_ids=item.continuation_input_ids,
        messages=None if item.messages is None else dumped(item.messages),
        truncation=item.truncation or "left",
    )


def _text(item: RollingItem) -> RollingLoglikelihoodRequest:
    return RollingLoglikelihoodRequest(item.text or "", item.input_ids)


def _admitted(check: Any, made: Any, item: Any) -> Any:
    """The request, or the failure that it is for every session like this one."""
    try:
        request = made(item)
        check(request)
    except EvalutionError as error:
        return RequestFailure(error)
    return request


async def _answered(results: Any, admitted: list[Any], single: bool, shown: Any) -> dict[str, Any]:
    """Answers in order; of a single request, its failure is the answer's."""
    good = [request for request in admitted if not isinstance(request, RequestFailure)]
    found = iter(await results(good))
    every = [one if isinstance(one, RequestFailure) else next(found) for one in admitted]
    if not single:
        return {"results": [shown(one) for one in every]}
    if isinstance(every[0], RequestFailure):
        raise every[0].error
    return dict(shown(every[0]))


def _shown(result: LoglikelihoodOutput | RequestFailure) -> LoglikelihoodAnswer:
    if isinstance(result, RequestFailure):
        return {"error": _detail(result)}
    return {
        "logprob": result.logprob,
        "is_greedy": result.is_greedy,
        "token_count": result.token_count,
        "token_ids": result.token_ids,
        "token_logprobs": result.token_logprobs,
        "prompt_tokens": result.prompt_tokens,
        "truncated_tokens": result.truncated_tokens,
    }


def _shown_whole(result: RollingLoglikelihoodOutput | RequestFailure) -> RollingAnswer:
    if isinstance(result, RequestFailure):
        return {"error": _detail(result)}
    return {
        "logprob": result.logprob,
        "token_count": result.token_count,
        "token_ids": result.token_ids,
        "token_logprobs": result.token_logprobs,
    }


def _detail(failure: RequestFailure) -> ErrorDetail:
    problem: Problem = problem_of(failure.error)
    return problem.answer["error"]
