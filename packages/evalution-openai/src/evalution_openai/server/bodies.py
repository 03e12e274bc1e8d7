"""Bodies of requests, and the requests of the session that they ask for.

Types are strict, `null` counts as absent, and fields that aren't declared are refused: elsewhere
one may change an answer.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from evalution_core import Capability, ConfigurationError, GenerationRequest
from evalution_core.requests import Message
from evalution_enginekit import Tokenizer
from evalution_openai.server.errors import ApiError, make_unsupported
from evalution_openai.server.serving import ServedModel

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Prompt = (
    str
    | Annotated[list[str], Field(fail_fast=True)]
    | TokenIds
    | Annotated[list[TokenIds], Field(fail_fast=True)]
)
Stop = Annotated[str, Field(max_length=1000)]
Stops = Stop | Annotated[list[Stop], Field(max_length=64, fail_fast=True)]
"""Bounded, as each of them is searched for after every token."""


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Body(Strict):
    model: str | None = Field(None, description="The served model's name; absent: that one.")
    _size: int = PrivateAttr(0)

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Parse JSON; raises pydantic's `ValidationError`."""
        body = cls.model_validate_json(text)
        body._size = len(text)
        return body

    @property
    def size(self) -> int:
        """Return the bytes of the JSON."""
        return self._size


class StreamOptions(Strict):
    include_usage: bool | None = Field(None, description="End with a chunk that has the usage.")
    continuous_usage_stats: bool | None = Field(
        None, description="Without effect: the usage is in the last chunk alone."
    )
    include_obfuscation: bool | None = Field(None, description="Without effect: nothing is padded.")


class ResponseFormat(BaseModel):
    type: str = "text"


class Unread(Strict):
    """Fields that can't change an answer: who asks, and how other services bill, keep and cache."""

    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    cache_salt: Any = None
    request_id: Any = None
    priority: Any = None


class GenerationBody(Body, Unread):
    """Fields that completions and chat share."""

    temperature: Annotated[float, Field(ge=0, le=1000)] | None = Field(
        None, description="0 or absent: greedy."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = Field(
        None, description="-1 and 0 cut nothing."
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stop: Stops | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    truncation: Literal["left", "error"] | None = Field(
        None, description="Cut a prompt that is too long, or refuse it; absent: refuse."
    )
    return_token_ids: bool | None = Field(
        None, description="Add `token_ids`, `prompt_token_ids`, `prompt` and `truncated_tokens`."
    )
    return_tokens_as_token_ids: bool | None = Field(
        None, description="Spell each token of the log-probabilities as `token_id:N`."
    )
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    num_beams: int | None = None
    logit_bias: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None


class CompletionBody(GenerationBody):
    prompt: Prompt = Field(description="A text, texts, token ids, or lists of token ids.")
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = Field(
        None, description="Absent: 16. 0 only with `echo`."
    )
    echo: bool | None = Field(None, description="Return the prompt too.")
    logprobs: Annotated[int, Field(ge=0, le=1000)] | bool | None = Field(
        None, description="List that many of the likeliest tokens at each position."
    )
    best_of: int | None = None
    suffix: str | None = None


class Open(BaseModel):
    """Content of a message, whose further fields go to the chat template."""

    model_config = ConfigDict(strict=True, extra="allow")


class TextPart(Open):
    type: str
    text: str | None = None


class ChatMessage(Open):
    role: str
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None


Messages = Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]


class ChatBody(GenerationBody):
    messages: Messages
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        None,
        description="Takes precedence over `max_tokens`. Neither: 256, or half the model's length.",
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=1000)] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        None,
        description="Variables that the chat template is rendered with, in addition to its own.",
    )
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="`none` leaves the tools out of the prompt; absent: `auto`."
    )
    parallel_tool_calls: bool | None = None
    continue_final_message: bool | None = None


class ScoredItem(Strict):
    top_logprobs: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="List that many of the likeliest tokens at each scored position, by id."
    )


class LoglikelihoodItem(ScoredItem):
    """A continuation and its context, as text, ids or messages; ids are taken as they are."""

    context: str | None = None
    continuation: str | None = None
    context_input_ids: TokenIds | None = None
    continuation_input_ids: TokenIds | None = None
    messages: Messages | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Refused: the server's own are what contexts are rendered with."
    )
    truncation: Literal["left", "error"] | None = Field(None, description="Absent: left.")


class LoglikelihoodBody(Body, LoglikelihoodItem):
    requests: Annotated[list[LoglikelihoodItem], Field(fail_fast=True)] | None = Field(
        None, description="Many at once, in place of the fields of one."
    )


class RollingItem(ScoredItem):
    """A text to score as a whole, or its token ids."""

    text: str | None = None
    input_ids: TokenIds | None = None


class RollingBody(Body, RollingItem):
    requests: Annotated[list[RollingItem], Field(fail_fast=True)] | None = Field(
        None, description="Many at once, in place of the fields of one."
    )


class TokenizeBody(Body):
    prompt: str
    add_special_tokens: bool | None = Field(
        None, description="Absent or true: with the ids that stand before every prompt."
    )


class DetokenizeBody(Body):
    tokens: TokenIds
    skip_special_tokens: bool | None = None


_COMPLETION_TOKENS, _CHAT_TOKENS = 16, 256
"""Default numbers of new tokens; the first is OpenAI's."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "num_beams": (1,),
    "parallel_tool_calls": (True,),
    "continue_final_message": (False,),
    "logit_bias": ({},),
    "suffix": ("",),
}
"""Fields that no engine supports, and their values that have no effect."""

_SEEDS = 2**63
MOST_LISTED, MOST_LISTED_IN_CHAT = 8_000_000, 2_500_000
"""Log-probabilities in one answer; each takes about 100 bytes while it is made, in a chat 300."""


@dataclass(frozen=True, slots=True)
class PromptInput:
    """One prompt of a body, as text or as ids; ids take precedence."""

    text: str | None = None
    token_ids: Sequence[int] | None = None

    @property
    def fields(self) -> dict[str, Any]:
        return {"prompt": self.text} if self.token_ids is None else {"input_ids": self.token_ids}


def read_prompts(body: CompletionBody, served: ServedModel) -> list[PromptInput]:
    """Read the prompts of a body; at least one."""
    prompt: Any = body.prompt
    if isinstance(prompt, str):
        return [PromptInput(text=prompt)]
    if prompt and isinstance(prompt[0], int):
        return [PromptInput(token_ids=cast("list[int]", prompt))]
    if not prompt:
        raise ApiError(400, "prompt is empty", param="prompt")
    check_count(len(prompt) * (body.n or 1), served)
    return [
        PromptInput(text=one) if isinstance(one, str) else PromptInput(token_ids=one)
        for one in cast("list[str | list[int]]", prompt)
    ]


def check_count(count: int, served: ServedModel) -> None:
    """Raise an `ApiError` for more prompts in one body than the operator allows."""
    limit = served.settings.max_prompts
    if count > limit:
        raise ApiError(400, f"{count} prompts in one request; this server takes {limit}")


def check_listed(
    body: CompletionBody | ChatBody, requests: Sequence[GenerationRequest], served: ServedModel
) -> None:
    """Raise an `ApiError` where more log-probabilities may come than fit into memory."""
    if requests[0].logprobs is None:
        return
    listed = max(1, requests[0].logprobs)
    limits = [request.max_new_tokens for request in requests] if listed > 1 else []
    places = sum(min(limit, served.max_model_len or limit) for limit in limits)
    if isinstance(body, CompletionBody) and body.echo:
        places += sum(len(request.input_ids or ()) for request in requests)
    check_listed_places(listed, places, "logprobs")


def check_listed_places(listed: int, places: int, param: str, most: int = MOST_LISTED) -> None:
    """Raise an `ApiError` where so many log-probabilities at each place don't fit into memory."""
    if listed * places > most:
        raise ApiError(
            400,
            f"{listed} log-probabilities at up to {places} tokens are more than the {most} that "
            "one answer may have; ask for fewer, or for fewer tokens or choices",
            param=param,
        )


def check_repeated(size: int, body: CompletionBody | ChatBody, served: ServedModel) -> None:
    """Raise an `ApiError` where choices repeat too much of prompts of `size` characters and ids."""
    repeats = body.return_token_ids or (isinstance(body, CompletionBody) and body.echo)
    limit = served.settings.max_body_bytes
    if repeats and size * (body.n or 1) > limit:
        raise ApiError(
            400,
            f"{body.n} choices that each repeat their prompt would have {size * (body.n or 1)} "
            f"characters or token ids of prompts, and an answer may have {limit}; ask for fewer "
            "choices, or leave out echo and return_token_ids",
            param="n",
        )


def make_completion_requests(
    body: CompletionBody, prompts: Sequence[PromptInput], served: ServedModel
) -> list[GenerationRequest]:
    """Make `n` requests of each prompt, in the order of the choices."""
    if body.best_of not in (None, body.n or 1):
        raise make_unsupported(
            f"best_of={body.best_of} is not supported; ask for n", param="best_of"
        )
    limit = _COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    options = _read_options(body, served) | {
        "max_new_tokens": max(1, limit),
        "logprobs": count_listed(body),
    }
    return [
        GenerationRequest(**prompt.fields, **_set_seed(options, choice))
        for prompt in prompts
        for choice in range(body.n or 1)
    ]


def count_listed(body: CompletionBody) -> int | None:
    """Return the number of tokens to list at each position; None: no log-probabilities."""
    if isinstance(body.logprobs, bool):
        return 1 if body.logprobs else None
    return body.logprobs


def make_chat_requests(body: ChatBody, served: ServedModel) -> list[GenerationRequest]:
    """Make `n` requests of the conversation."""
    _check_tools(body)
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    limit = body.max_completion_tokens or body.max_tokens or _default_chat_tokens(served)
    options = _read_options(body, served) | {
        "messages": dump_messages(body.messages),
        "add_generation_prompt": body.add_generation_prompt is not False,
        "max_new_tokens": limit,
        "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
    }
    return [GenerationRequest(**_set_seed(options, choice)) for choice in range(body.n or 1)]


def render_requests(
    requests: Sequence[GenerationRequest], variables: Mapping[str, Any], served: ServedModel
) -> list[GenerationRequest]:
    """Render the requests of one conversation with the variables of the client.

    The session would use only its model's. Rendering takes time: call it on a thread.

    Raises:
        ApiError: the session gives no template, or the template doesn't read such a variable.
        InvalidRequestError: the template refuses the messages.
    """
    tokenizer = served.tokenizer
    template = tokenizer.chat_template if isinstance(tokenizer, Tokenizer) else None
    if template is None or not template.source:
        raise make_unsupported(
            "chat_template_kwargs of a request need the model's chat template, which this engine "
            "doesn't give; leave the field out",
            param="chat_template_kwargs",
        )
    first = requests[0]
    try:
        template = template.with_variables(variables)
    except ConfigurationError as error:
        raise ApiError(400, str(error), param="chat_template_kwargs") from error
    text = template.render(first.messages or (), add_generation_prompt=first.add_generation_prompt)
    return [replace(request, messages=None, rendered_prompt=text) for request in requests]


def dump_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """Return the messages as the session takes them, without null fields."""
    return [message.model_dump(exclude_none=True) for message in messages]


def _default_chat_tokens(served: ServedModel) -> int:
    window = served.max_model_len
    return _CHAT_TOKENS if window is None else max(1, min(_CHAT_TOKENS, window // 2))


def _check_tools(body: ChatBody) -> None:
    if body.tools and body.tool_choice != "none":
        raise make_unsupported(
            "tool calls aren't parsed here, so a call would be taken for an answer: leave `tools` "
            "out, or describe them in a message, and read calls from the text",
            param="tools",
        )
    if body.tool_choice not in (None, "none", "auto"):
        raise make_unsupported(
            f"tool_choice={body.tool_choice!r} is not supported; only 'none' and 'auto' are, as "
            "nothing here constrains what is generated",
            param="tool_choice",
        )


def _read_options(body: GenerationBody, served: ServedModel) -> dict[str, Any]:
    given = body.model_fields_set
    for name in (name for name in _NEUTRAL if name in given):
        value, neutral = getattr(body, name), _NEUTRAL[name]
        if value is not None and value not in neutral:
            raise make_unsupported(
                f"{name}={reprlib.repr(value)} is not supported; leave it out, or send "
                f"{neutral[0]!r}",
                param=name,
            )
    if body.response_format is not None and body.response_format.type != "text":
        raise make_unsupported(
            f"response_format {body.response_format.type!r} is not supported; only 'text' is, as "
            "nothing here constrains what is generated: ask for JSON in the prompt, and check what "
            "comes",
            param="response_format",
        )
    sampled = bool(body.temperature)
    return {
        "stop": [body.stop] if isinstance(body.stop, str) else list(body.stop or ()),
        "do_sample": sampled,
        "temperature": body.temperature or 0.0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "top_k": max(0, body.top_k or 0),
        "seed": body.seed if sampled else None,
        "ignore_eos": bool(body.ignore_eos),
        "truncation": choose_truncation(body, served),
    }


def choose_truncation(body: GenerationBody, served: ServedModel) -> Literal["left", "error"]:
    """Return the body's choice; without one, refuse long prompts if the engine can."""
    if body.truncation is not None:
        return body.truncation
    return "error" if Capability.TRUNCATION in served.capabilities else "left"


def _set_seed(options: dict[str, Any], choice: int) -> dict[str, Any]:
    """Give each choice of one prompt its own seed, if there is one."""
    seed = options["seed"]
    return options if seed is None else options | {"seed": (seed + choice) % _SEEDS}
