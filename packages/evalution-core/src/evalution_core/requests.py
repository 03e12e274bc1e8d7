"""Requests and outputs: plain values that cross every engine, process and wire unchanged.

Positional fields are those of the Engine Guide, in its order; what came later is keyword-only.
They are not validated when built, so that a million of them cost little: the session validates.
A value that an engine may not know is Optional and then None, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, cast

from evalution_core.errors import EvalutionError, InvalidRequestError

Message = Mapping[str, Any]
"""`{"role": …, "content": …}`; the content is a string or a list of `{"type": "text", …}`."""
Truncation = Literal["left", "error"]
FinishReason = Literal["stop", "length"]
TopLogprobs = list[dict[int, float]]
"""For each token, the k ids that were most likely in its place, with their log-probabilities."""


def _metadata() -> dict[str, Any]:
    return {}


@dataclass(slots=True)
class GenerationRequest:
    """A prompt to complete, as ids, rendered text, messages or text; the first one given counts.

    `do_sample=False` is greedy whatever the temperature; `top_k=0` and `top_p=1.0` cut nothing.
    `logprobs=k` asks for the k most likely tokens at each step (0: only the chosen one).
    A prompt that leaves no room for `max_new_tokens` is cut from the left and counted in
    `truncated_tokens`, or refused with `truncation="error"`.
    """

    prompt: str | None = None
    messages: Sequence[Message] | None = None
    rendered_prompt: str | None = None
    input_ids: Sequence[int] | None = None
    add_generation_prompt: bool = True
    stop: Sequence[str] = field(default_factory=list[str])
    max_new_tokens: int = 256
    num_beams: int = 1
    do_sample: bool = False
    temperature: float = 0.0
    metadata: dict[str, Any] = field(default_factory=_metadata)
    _: KW_ONLY
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    logprobs: int | None = None
    ignore_eos: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    truncation: Truncation = "left"


@dataclass(slots=True)
class GenerationOutput:
    """Verbatim text: no special tokens, no stop string, nothing stripped.

    `prompt` is the text that was completed. `token_ids` end before the end-of-sequence token or
    the first token that lies wholly in the stop string; `completion_tokens` counts all that were
    generated. `runtime` holds what the runtime reported; `metadata` is the request's own.
    """

    prompt: str
    text: str
    metadata: dict[str, Any] = field(default_factory=_metadata)
    _: KW_ONLY
    token_ids: list[int] | None = None
    token_logprobs: list[float] | None = None
    top_logprobs: TopLogprobs | None = None
    finish_reason: FinishReason | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    truncated_tokens: int | None = None
    runtime: dict[str, Any] | None = None


@dataclass(slots=True)
class LoglikelihoodRequest:
    """A continuation to score given a context; ids, where given, are taken as they are.

    `messages` stand for the context and are rendered with the generation prompt.
    A context that doesn't fit is cut from the left; a continuation never is.
    `top_logprobs=k` asks for the k most likely tokens at each scored position, at least one.
    """

    context: str = ""
    continuation: str = ""
    context_input_ids: Sequence[int] | None = None
    continuation_input_ids: Sequence[int] | None = None
    metadata: dict[str, Any] = field(default_factory=_metadata)
    _: KW_ONLY
    messages: Sequence[Message] | None = None
    truncation: Truncation = "left"
    top_logprobs: int | None = None


@dataclass(slots=True)
class LoglikelihoodOutput:
    """`logprob` is the sum of `token_logprobs` in nats; `token_count` is how many were scored.

    `is_greedy`: no token had a strictly larger logit at any position. `top_logprobs` has the most
    likely tokens of each position where the request asked for them, whether scored or not.
    """

    logprob: float
    is_greedy: bool | None
    token_count: int
    metadata: dict[str, Any] = field(default_factory=_metadata)
    _: KW_ONLY
    token_ids: list[int] | None = None
    token_logprobs: list[float] | None = None
    prompt_tokens: int | None = None
    truncated_tokens: int | None = None
    runtime: dict[str, Any] | None = None
    top_logprobs: TopLogprobs | None = None


@dataclass(slots=True)
class RollingLoglikelihoodRequest:
    """A text of any length; each of its tokens is scored once, the BOS token never.

    `top_logprobs` as in `LoglikelihoodRequest`.
    """

    text: str = ""
    input_ids: Sequence[int] | None = None
    metadata: dict[str, Any] = field(default_factory=_metadata)
    _: KW_ONLY
    top_logprobs: int | None = None


@dataclass(slots=True)
class RollingLoglikelihoodOutput:
    """`logprob` is the sum of `token_logprobs` in nats over all windows of the text."""

    logprob: float
    token_count: int
    metadata: dict[str, Any] = field(default_factory=_metadata)
    _: KW_ONLY
    token_ids: list[int] | None = None
    token_logprobs: list[float] | None = None
    runtime: dict[str, Any] | None = None
    top_logprobs: TopLogprobs | None = None


@dataclass(slots=True)
class DistributionRequest:
    """Ids to feed as they are; a row is wanted for each of `input_ids[start:]`, before it is seen.

    `start` is at least 1. The last id isn't fed, so at most `max_model_len + 1` ids fit, and
    nothing is cut.
    """

    input_ids: Sequence[int]
    start: int = 1
    metadata: dict[str, Any] = field(default_factory=_metadata)


@dataclass(frozen=True, slots=True)
class DistributionRows:
    """Rows of a request from its scored position `first` on, as they come from the model.

    `rows` holds natural-log probabilities of the whole vocabulary in float32, C-contiguous, of
    shape (positions, vocabulary): each row sums to 1, with no temperature, penalty or cut applied.
    """

    first: int
    rows: memoryview


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Takes the place of an output in a continuous call; the stream goes on with the others."""

    error: EvalutionError
    metadata: dict[str, Any] = field(default_factory=_metadata)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of a request's text, final: no later event takes any of it back.

    All pieces joined are the text of the request's output. `token_ids` are the tokens whose text
    became certain with this piece; they may be empty, and so may the text.
    """

    text: str
    token_ids: tuple[int, ...] = ()


Request = GenerationRequest | LoglikelihoodRequest | RollingLoglikelihoodRequest
Output = GenerationOutput | LoglikelihoodOutput | RollingLoglikelihoodOutput
StreamEvent = TextDelta | GenerationOutput | RequestFailure
"""Yielded by `stream`: deltas, then exactly one output or failure per request."""


def read_metadata(request: object) -> dict[str, Any]:
    """Return the metadata of a request, for the failure of what may be none; empty then."""
    return request.metadata if isinstance(request, Request | DistributionRequest) else {}


def parse_item(item: object, position: int) -> tuple[Any, Any] | RequestFailure:
    """Return the key and the request of an item of a continuous call's input.

    An item that is no pair is a failure of its own; it has no key, so its result comes under None.
    """
    if isinstance(item, tuple | list) and len(cast("Sequence[Any]", item)) == 2:
        key, request = cast("Sequence[Any]", item)
        return key, request
    return RequestFailure(
        InvalidRequestError(
            f"item {position} of the input must be a pair of key and request, got {item!r}"
        )
    )
