"""Routes beyond OpenAI's: scores of texts, and the tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NotRequired, TypeVar

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
from evalution_enginekit import ChatTemplate
from evalution_openai.server.bodies import (
    DetokenizeBody,
    LoglikelihoodBody,
    LoglikelihoodItem,
    RollingBody,
    RollingItem,
    TokenizeBody,
    check_count,
    dump_messages,
)
from evalution_openai.server.errors import ApiError, ErrorDetail, make_unsupported, to_api_error
from evalution_openai.server.serving import ServedModel, WholeTokenizer

Item = TypeVar("Item")
Score = TypeVar("Score")
Scorable = TypeVar("Scorable")

_OWN_VARIABLES = (
    "a context is rendered with the variables that the server was started with; leave "
    "chat_template_kwargs out, or send the rendered text as context"
)


class RollingAnswer(TypedDict):
    """A score; in a batch, `error` may replace all other fields."""

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


async def loglikelihood(served: ServedModel, body: LoglikelihoodBody) -> dict[str, Any]:
    """Score one continuation given its context, or those of `requests`."""
    if body.chat_template_kwargs:
        raise make_unsupported(_OWN_VARIABLES, param="chat_template_kwargs")
    items = [body] if body.requests is None else body.requests
    check_count(len(items), served)
    requests = [
        _validate(served.validation.check_loglikelihood, _to_pair_request, i) for i in items
    ]
    results = await _score(served, requests)
    return _answer(served, results, _format_pair_score, is_single=body.requests is None)


async def rolling(served: ServedModel, body: RollingBody) -> dict[str, Any]:
    """Score each token of one text, or of those of `requests`."""
    items = [body] if body.requests is None else body.requests
    check_count(len(items), served)
    requests = [_validate(served.validation.check_rolling, _to_text_request, i) for i in items]
    results = await _score(served, requests)
    return _answer(served, results, _format_text_score, is_single=body.requests is None)


def _to_pair_request(item: LoglikelihoodItem) -> LoglikelihoodRequest:
    if item.chat_template_kwargs:
        raise UnsupportedRequestError(_OWN_VARIABLES)
    return LoglikelihoodRequest(
        context=item.context or "",
        continuation=item.continuation or "",
        context_input_ids=item.context_input_ids,
        continuation_input_ids=item.continuation_input_ids,
        messages=None if item.messages is None else dump_messages(item.messages),
        truncation=item.truncation or "left",
    )


def _to_text_request(item: RollingItem) -> RollingLoglikelihoodRequest:
    return RollingLoglikelihoodRequest(item.text or "", item.input_ids)


def _validate(
    check: Callable[[Scorable], object], make: Callable[[Item], Scorable], item: Item
) -> Scorable | RequestFailure:
    """Make and check a request; return its failure if it is invalid."""
    try:
        request = make(item)
        check(request)
    except EvalutionError as error:
        return RequestFailure(error)
    return request


async def _score(served: ServedModel, requests: Sequence[Any]) -> list[Any]:
    """Score the valid requests; results and failures are in the order of the requests."""
    valid = [request for request in requests if not isinstance(request, RequestFailure)]
    scores = iter(await served.score(valid))
    return [one if isinstance(one, RequestFailure) else next(scores) for one in requests]


def _answer(
    served: ServedModel,
    results: Sequence[Score | RequestFailure],
    format_score: Callable[[Score], RollingAnswer],
    *,
    is_single: bool,
) -> dict[str, Any]:
    """Answer with the results; the failure of a single request is raised."""
    if is_single and isinstance(results[0], RequestFailure):
        raise results[0].error
    answers: list[RollingAnswer] = [
        {"error": to_api_error(result.error, served.secrets).answer["error"]}
        if isinstance(result, RequestFailure)
        else format_score(result)
        for result in results
    ]
    return dict(answers[0]) if is_single else {"results": answers}


def _format_pair_score(score: LoglikelihoodOutput) -> LoglikelihoodAnswer:
    return {
        "logprob": score.logprob,
        "is_greedy": score.is_greedy,
        "token_count": score.token_count,
        "token_ids": score.token_ids,
        "token_logprobs": score.token_logprobs,
        "prompt_tokens": score.prompt_tokens,
        "truncated_tokens": score.truncated_tokens,
    }


def _format_text_score(score: RollingLoglikelihoodOutput) -> RollingAnswer:
    return {
        "logprob": score.logprob,
        "token_count": score.token_count,
        "token_ids": score.token_ids,
        "token_logprobs": score.token_logprobs,
    }


class TokenizeAnswer(TypedDict):
    tokens: list[int]
    count: int
    max_model_len: int | None


class DetokenizeAnswer(TypedDict):
    prompt: str


class TokenizerInfo(TypedDict):
    """The tokenizer as data; null where the session doesn't report it."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: None
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None
    special_tokens: dict[str, str] | None
    leading_ids: list[int] | None
    bos_id: int | None
    eos_id: int | None
    eos_ids: list[int] | None
    special_ids: list[int] | None
    vocabulary_size: int | None


async def tokenize(served: ServedModel, body: TokenizeBody) -> TokenizeAnswer:
    """Encode a text as the server encodes a prompt."""
    codec = served.require_tokenizer("/tokenize")
    token_ids: list[int] | None = None
    if body.add_special_tokens is not False:
        token_ids = await asyncio.to_thread(served.encode_prompt, body.prompt)
    if token_ids is None:
        token_ids = await asyncio.to_thread(codec.encode, body.prompt)
    return {"tokens": token_ids, "count": len(token_ids), "max_model_len": served.max_model_len}


async def detokenize(served: ServedModel, body: DetokenizeBody) -> DetokenizeAnswer:
    """Decode ids."""
    codec = served.require_tokenizer("/detokenize")
    size = codec.vocabulary_size if isinstance(codec, WholeTokenizer) else None
    if size is not None and (largest := max(body.tokens, default=0)) >= size:
        raise ApiError(400, f"token id {largest} is outside the vocabulary of {size} tokens")
    skip = bool(body.skip_special_tokens)
    text = await asyncio.to_thread(codec.decode, body.tokens, skip_special_tokens=skip)
    return {"prompt": text}


async def tokenizer_info(served: ServedModel) -> TokenizerInfo:
    """Return the facts that a client needs to encode as the server does."""
    codec = served.require_tokenizer("/tokenizer_info")
    whole = codec if isinstance(codec, WholeTokenizer) else None
    template = whole.chat_template if whole else None
    known = template if isinstance(template, ChatTemplate) else None
    return {
        "tokenizer_class": type(codec).__name__,
        "bos_token": _spell(served, codec.bos_id),
        "eos_token": _spell(served, codec.eos_id),
        "pad_token": None,
        "chat_template": (template.source or None) if template is not None else None,
        "chat_template_kwargs": known.variables if known is not None else None,
        "special_tokens": known.special_tokens if known is not None else None,
        "leading_ids": list(codec.leading_ids),
        "bos_id": codec.bos_id,
        "eos_id": codec.eos_id,
        "eos_ids": sorted(whole.eos_ids) if whole else None,
        "special_ids": sorted(whole.special_ids) if whole else None,
        "vocabulary_size": whole.vocabulary_size if whole else None,
    }


def _spell(served: ServedModel, token_id: int | None) -> str | None:
    return None if token_id is None else served.spell(token_id)
