"""Types of request bodies: strict, `null` as absent, unknown fields ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    model: str | None = Field(None, description="The served model's name; absent: that one.")


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool | None = Field(None, description="End with a chunk that has the usage.")


class ResponseFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    type: str = "text"


class GenerationBody(Body):
    """What completions and chat have in common."""

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
    logit_bias: dict[str, float] | None = None
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


class TextPart(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    type: str
    text: str | None = None


class ChatMessage(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

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
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None


class LoglikelihoodItem(BaseModel):
    """A continuation and its context, as text, ids or messages; ids are taken as they are."""

    model_config = ConfigDict(strict=True, extra="ignore")

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


class RollingItem(BaseModel):
    """A text to score as a whole, or its token ids."""

    model_config = ConfigDict(strict=True, extra="ignore")

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
