"""Routes beyond OpenAI's: scores of texts, and the tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
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
from evalution_core.encoding import encode_with_leading
from evalution_core.requests import Request
from evalution_enginekit import Tokenizer
from evalution_openai.server.bodies import (
    DetokenizeBody,
    LoglikelihoodBody,
    LoglikelihoodItem,
    RollingBody,
    RollingItem,
    TokenizeBody,
    check_count,
    check_listed_places,
    dump_messages,
)
from evalution_openai.server.errors import ApiError, ErrorDetail, make_unsupported, to_api_error
from evalution_openai.server.serving import LONG_TEXT, ServedModel

Item = TypeVar("Item", LoglikelihoodItem, RollingItem)

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
    top_logprobs: NotRequired[list[dict[int, float]]]
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

    def make(item: LoglikelihoodItem) -> LoglikelihoodRequest:
        if item.chat_template_kwargs:
            raise UnsupportedRequestError(_OWN_VARIABLES)
        request = LoglikelihoodRequest(
            context=item.context or "",
            continuation=item.continuation or "",
            context_input_ids=item.context_input_ids,
            continuation_input_ids=item.continuation_input_ids,
            messages=None if item.messages is None else dump_messages(item.messages),
            truncation=item.truncation or "left",
            top_logprobs=item.top_logprobs,
        )
        served.validation.check_loglikelihood(request)
        served.check_request(request)
        return request

    return await _score(served, body, body.requests, make, body.size)


async def rolling(served: ServedModel, body: RollingBody) -> dict[str, Any]:
    """Score each token of one text, or of those of `requests`."""

    def make(item: RollingItem) -> RollingLoglikelihoodRequest:
        request = RollingLoglikelihoodRequest(
            item.text or "", item.input_ids, top_logprobs=item.top_logprobs
        )
        served.validation.check_rolling(request)
        served.check_request(request)
        return request

    return await _score(served, body, body.requests, make, body.size)


async def _score(
    served: ServedModel,
    single: Item,
    items: Sequence[Item] | None,
    make: Callable[[Item], Request],
    size: int,
) -> dict[str, Any]:
    """Score `single`, whose failure is raised, or `items`, whose failures are in their places.

    `size` is that of the body.
    """
    each = [single] if items is None else items
    check_count(len(each), served)

    def make_all() -> list[Request | ApiError | EvalutionError]:
        return [_make_or_refuse(make, item) for item in each]

    requests = await served.threads.run(size, make_all) if size > LONG_TEXT else make_all()
    listing = [one for one in each if one.top_logprobs is not None]
    listed = max((one.top_logprobs or 0 for one in listing), default=0)
    check_listed_places(listed, sum(map(_count_places, listing)), "top_logprobs")
    valid: list[Any] = [one for one in requests if not isinstance(one, Exception)]
    scores = iter(await served.calls.answer(valid))
    results = [one if isinstance(one, Exception) else next(scores) for one in requests]
    if items is None:
        return dict(_format_result(results[0]))
    answers: list[LoglikelihoodAnswer] = []
    for result in results:
        try:
            answers.append(_format_result(result))
        except (ApiError, EvalutionError) as error:
            answers.append({"error": to_api_error(error, served.secrets).answer["error"]})
    return {"results": answers}


def _count_places(item: LoglikelihoodItem | RollingItem) -> int:
    """Count the tokens that an item scores at most: one has at least a byte."""
    if isinstance(item, LoglikelihoodItem):
        return len(item.continuation_input_ids or (item.continuation or "").encode())
    return len(item.input_ids or (item.text or "").encode())


def _make_or_refuse(
    make: Callable[[Item], Request], item: Item
) -> Request | ApiError | EvalutionError:
    try:
        return make(item)
    except (ApiError, EvalutionError) as error:
        return error


def _format_result(
    result: LoglikelihoodOutput | RollingLoglikelihoodOutput | RequestFailure | Exception,
) -> LoglikelihoodAnswer:
    if isinstance(result, RequestFailure):
        raise result.error
    if isinstance(result, Exception):
        raise result
    answer: LoglikelihoodAnswer = {
        "logprob": result.logprob,
        "token_count": result.token_count,
        "token_ids": result.token_ids,
        "token_logprobs": result.token_logprobs,
    }
    if result.top_logprobs is not None:
        answer["top_logprobs"] = result.top_logprobs
    if isinstance(result, LoglikelihoodOutput):
        answer["is_greedy"] = result.is_greedy
        answer["prompt_tokens"] = result.prompt_tokens
        answer["truncated_tokens"] = result.truncated_tokens
    return answer


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
    tool_chat_template: str | None
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
    size = len(body.prompt)
    served.check_length(size)
    has_leading = body.add_special_tokens is not False
    encode = partial(encode_with_leading, codec) if has_leading else codec.encode
    token_ids = await served.threads.run(size, encode, body.prompt)
    return {"tokens": token_ids, "count": len(token_ids), "max_model_len": served.max_model_len}


async def detokenize(served: ServedModel, body: DetokenizeBody) -> DetokenizeAnswer:
    """Decode ids."""
    codec = served.require_tokenizer("/detokenize")
    served.check_ids(body.tokens)
    served.check_length(len(body.tokens))
    skip = bool(body.skip_special_tokens)
    text = await served.threads.run(
        len(body.tokens), codec.decode, body.tokens, skip_special_tokens=skip
    )
    return {"prompt": text}


async def tokenizer_info(served: ServedModel) -> TokenizerInfo:
    """Return the facts that a client needs to encode as the server does."""
    codec = served.require_tokenizer("/tokenizer_info")
    whole = codec if isinstance(codec, Tokenizer) else None
    template = whole.chat_template if whole else None
    return {
        "tokenizer_class": type(codec).__name__,
        "bos_token": await _spell(served, codec.bos_id),
        "eos_token": await _spell(served, codec.eos_id),
        "pad_token": None,
        "chat_template": (template.source or None) if template else None,
        "tool_chat_template": template.tool_source if template else None,
        "chat_template_kwargs": template.variables if template else None,
        "special_tokens": template.special_tokens if template else None,
        "leading_ids": list(codec.leading_ids),
        "bos_id": codec.bos_id,
        "eos_id": codec.eos_id,
        "eos_ids": sorted(whole.eos_ids) if whole else None,
        "special_ids": sorted(whole.special_ids) if whole else None,
        "vocabulary_size": whole.vocabulary_size if whole else None,
    }


async def _spell(served: ServedModel, token_id: int | None) -> str | None:
    return None if token_id is None else await served.threads.run(1, served.spell, token_id)
