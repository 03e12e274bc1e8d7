"""Requests to jobs: validated, rendered, tokenized and fitted, on the caller's side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar, cast

from evalution_core import (
    Capability,
    ContextLengthError,
    EngineRuntimeError,
    EvalutionError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_core.encoding import (
    ContextEncoder,
    TokenSpan,
    conditioning_id,
    encode_request,
    encode_with_leading,
    fit_pair,
    rolling_windows,
    strip_leading,
)
from evalution_core.errors import raise_failures
from evalution_core.requests import DistributionRequest, Message, read_metadata
from evalution_enginekit.batching import map_in_threads
from evalution_enginekit.generation import GenerationJob, TokenPrompt
from evalution_enginekit.planning import TokenScore
from evalution_enginekit.runtime_thread import runtime_errors
from evalution_enginekit.scoring import ScoringJob, complete_logprobs, complete_top_logprobs
from evalution_enginekit.tokenizer import Tokenizer

Q = TypeVar("Q")
T = TypeVar("T")


class RequestValidator:
    """Checks requests against the contract and an engine's declared capabilities.

    Each check raises `InvalidRequestError` for a request no engine could serve, or
    `UnsupportedRequestError` for one that needs a capability which isn't declared.
    """

    def __init__(
        self,
        engine: str,
        capabilities: frozenset[Capability],
        lacking: Mapping[Capability, str] | None = None,
    ):
        """`lacking` has the reason for each capability that this session lacks."""
        self._engine = engine
        self._capabilities = capabilities
        self._lacking = dict(lacking or {})

    def check_all(self, check: Callable[[Q], T], requests: Sequence[Q]) -> list[T]:
        """Return `check` of every request; raise one error for all that fail, before any ran."""

        def attempt(request: Q) -> T | EvalutionError:
            try:
                return check(request)
            except (InvalidRequestError, UnsupportedRequestError) as error:
                return error

        results = map_in_threads(attempt, requests)
        failures = {at: one for at, one in enumerate(results) if isinstance(one, EvalutionError)}
        if failures:
            raise_failures(failures, len(requests))
        return cast("list[T]", results)

    def check_generation(self, request: GenerationRequest) -> None:
        _check_type(request, GenerationRequest)
        self._need(Capability.GENERATE, "generate", asked=True)
        if request.tools is not None:
            _check(_is_list(request.tools), "tools", "a list of dicts", request.tools)
            for tool in request.tools:
                _check(_is_dict(tool), "a tool", "a dict", tool)
        if request.input_ids is not None:
            self._check_ids("input_ids", request.input_ids)
        elif request.rendered_prompt is not None:
            _check_text("rendered_prompt", request.rendered_prompt)
        elif request.messages is not None:
            self._check_messages(request.messages)
        elif request.prompt is not None:
            _check_text("prompt", request.prompt)
            if request.tools:
                raise InvalidRequestError(
                    "tools need messages: the model's chat template writes them into the prompt, "
                    "and prompt is taken as it is; give messages, or the rendered_prompt with tools"
                )
        else:
            raise InvalidRequestError(
                "a generation request needs input_ids, rendered_prompt, messages or prompt"
            )
        _check_int("max_new_tokens", request.max_new_tokens, least=1)
        _check_int("num_beams", request.num_beams, least=1)
        _check_stops(request.stop)
        for name in ("do_sample", "ignore_eos", "add_generation_prompt"):
            value = getattr(request, name)
            _check(type(value) is bool, name, "True or False", value)
        _check(_is_dict(request.metadata), "metadata", "a dict", request.metadata)
        self._need(Capability.BEAMS, f"num_beams={request.num_beams}", asked=request.num_beams > 1)
        self._need(Capability.IGNORE_EOS, "ignore_eos", asked=request.ignore_eos)
        self._need(Capability.TOOLS, "tools", asked=bool(request.tools))
        if request.logprobs is not None:
            _check_int("logprobs", request.logprobs, least=0)
            self._need(Capability.LOGPROBS, f"logprobs={request.logprobs}", asked=True)
        self._check_truncation(request.truncation)
        self._check_sampling(request)

    def check_loglikelihood(self, request: LoglikelihoodRequest) -> None:
        _check_type(request, LoglikelihoodRequest)
        self._need(Capability.LOGLIKELIHOOD, "loglikelihood", asked=True)
        _check_text("context", request.context)
        _check_text("continuation", request.continuation)
        if request.context_input_ids is not None:
            self._check_ids("context_input_ids", request.context_input_ids, may_be_empty=True)
        if request.continuation_input_ids is not None:
            self._check_ids("continuation_input_ids", request.continuation_input_ids)
        if request.messages is not None:
            self._check_messages(request.messages)
        _check(_is_dict(request.metadata), "metadata", "a dict", request.metadata)
        if not request.continuation and request.continuation_input_ids is None:
            raise InvalidRequestError("the continuation is empty: there is nothing to score")
        self._check_truncation(request.truncation)
        self._check_top_logprobs(request.top_logprobs)

    def check_rolling(self, request: RollingLoglikelihoodRequest) -> None:
        _check_type(request, RollingLoglikelihoodRequest)
        self._need(Capability.ROLLING, "loglikelihood_rolling", asked=True)
        _check_text("text", request.text)
        _check(_is_dict(request.metadata), "metadata", "a dict", request.metadata)
        if request.input_ids is not None:
            self._check_ids("input_ids", request.input_ids)
        elif not request.text:
            raise InvalidRequestError(
                "a rolling request's text is empty: there is nothing to score"
            )
        self._check_top_logprobs(request.top_logprobs)

    def check_distribution(self, request: DistributionRequest) -> None:
        _check_type(request, DistributionRequest)
        self._need(Capability.DISTRIBUTIONS, "distributions", asked=True)
        self._check_ids("input_ids", request.input_ids)
        _check_int("start", request.start, least=1)
        if request.start >= len(request.input_ids):
            raise InvalidRequestError(
                f"start={request.start} leaves no position of {len(request.input_ids)} ids"
            )
        _check(_is_dict(request.metadata), "metadata", "a dict", request.metadata)

    def _need(self, capability: Capability, asked_for: str, *, asked: bool) -> None:
        if asked and capability not in self._capabilities:
            declared = ", ".join(sorted(self._capabilities)) or "nothing"
            why = self._lacking.get(
                capability,
                f"it lacks the capability {capability.value!r} (declares: {declared})",
            )
            raise UnsupportedRequestError(f"engine {self._engine} can't do {asked_for}: {why}")

    def _check_top_logprobs(self, count: int | None) -> None:
        if count is not None:
            _check_int("top_logprobs", count, least=1)
            self._need(Capability.PROMPT_TOP_LOGPROBS, f"top_logprobs={count}", asked=True)

    def _check_truncation(self, truncation: str) -> None:
        _check(truncation in ("left", "error"), "truncation", "'left' or 'error'", truncation)
        self._need(Capability.TRUNCATION, "truncation='error'", asked=truncation == "error")

    def _check_sampling(self, request: GenerationRequest) -> None:
        temperature, top_p = request.temperature, request.top_p
        is_valid = _is_number(temperature) and temperature >= 0
        _check(is_valid, "temperature", ">= 0 and below 1e300", temperature)
        is_valid = _is_number(top_p) and 0 < top_p <= 1
        _check(is_valid, "top_p", "above 0 and at most 1", top_p)
        _check_int("top_k", request.top_k, least=0)
        if request.seed is not None:
            _check_int("seed", request.seed, least=0)
        if not request.do_sample:
            return
        self._need(Capability.SAMPLING, "do_sample", asked=True)
        self._need(Capability.SEED, f"seed={request.seed}", asked=request.seed is not None)
        if temperature == 0:
            raise InvalidRequestError(
                "do_sample=True needs a temperature above 0; for greedy output leave do_sample off"
            )

    def _check_ids(self, name: str, token_ids: Any, *, may_be_empty: bool = False) -> None:
        self._need(Capability.TOKEN_IDS, name, asked=True)
        _check(_is_list(token_ids), name, "a list of ints, as array.tolist() gives", token_ids)
        for token_id in cast("Sequence[Any]", token_ids):
            if type(token_id) is not int or token_id < 0:
                raise InvalidRequestError(f"{name} must hold Python ints >= 0, found {token_id!r}")
        if not token_ids and not may_be_empty:
            raise InvalidRequestError(f"{name} is empty")

    def _check_messages(self, messages: Any) -> None:
        self._need(Capability.CHAT, "messages", asked=True)
        _check(_is_list(messages) and messages, "messages", "a non-empty list", messages)
        for message in cast("Sequence[Any]", messages):
            is_valid = _is_dict(message) and isinstance(message.get("role"), str)
            _check(is_valid, "a message", "a dict with a role", message)
            content: Any = message.get("content")
            if isinstance(content, list):
                self._check_parts(cast("list[Any]", content))
            else:
                is_valid = isinstance(content, str | None)
                _check(is_valid, "a message's content", "a string or a list of parts", content)

    def _check_parts(self, parts: list[Any]) -> None:
        for part in parts:
            is_valid = _is_dict(part) and "type" in part
            _check(is_valid, "a message part", "a dict with a type", part)
            kind = str(part["type"])
            self._need(Capability.MULTIMODAL, f"a message part {kind!r}", asked=kind != "text")
            if kind == "text" and not isinstance(part.get("text"), str):
                raise InvalidRequestError(f"a text part needs a string under 'text', got {part!r}")


def parse_batch_size(batch_size: int | Literal["auto"] | None) -> int | None:
    """Return the cap that a call or option sets; None for None and "auto": the session decides.

    Raises:
        InvalidRequestError: it is neither of these nor a positive int.
    """
    if batch_size is None or batch_size == "auto":
        return None
    _check_int("batch_size", batch_size, least=1)
    return batch_size


def _check(is_valid: object, name: str, wanted: str, value: object) -> None:
    if not is_valid:
        raise InvalidRequestError(f"{name} must be {wanted}, got {value!r}")


def _check_type(request: object, expected: type) -> None:
    if not isinstance(request, expected):
        raise InvalidRequestError(f"expected a {expected.__name__}, got {request!r}")


def _check_text(name: str, value: Any) -> None:
    _check(isinstance(value, str), name, "a string", value)
    check_unicode(name, value)


def check_unicode(name: str, text: str) -> None:
    """Raise `InvalidRequestError` for a lone surrogate, which JSON can spell and no text holds."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{name} is not valid Unicode text: {error}") from error


def _check_int(name: str, value: object, *, least: int) -> None:
    _check(type(value) is int and value >= least, name, f"an int >= {least}", value)


def _check_stops(stops: Any) -> None:
    _check(_is_list(stops), "stop", "a list of strings", stops)
    for stop in cast("Sequence[Any]", stops):
        if not isinstance(stop, str) or not stop:
            raise InvalidRequestError(f"a stop string must not be empty, got {stop!r}")
        check_unicode("a stop string", stop)


def _is_dict(value: object) -> bool:
    return isinstance(value, (dict, Mapping))  # an abstract class alone takes longer


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple, Sequence)) and not isinstance(value, str)


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(cast("float", value)) < 1e300


J = TypeVar("J")

_UNKEYED = -1
_THOUGHT = ("<think>", "</think>")
"""Markers around the reasoning of models that write it into their text."""


class RequestEncoder:
    """Text above, tokens below: the one place where requests become ids.

    Its methods raise `InvalidRequestError`, `ContextLengthError` or `UnsupportedRequestError`.
    `model_vocabulary` is how many ids the model has an embedding for; None: as the tokenizer.
    """

    def __init__(
        self,
        validator: RequestValidator,
        tokenizer: Tokenizer,
        max_model_len: int,
        model_vocabulary: int | None = None,
    ):
        self._validator = validator
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        known = tokenizer.vocabulary_size
        self._vocabulary = known if model_vocabulary is None else model_vocabulary
        self._contexts = ContextEncoder(tokenizer)

    def encode_generation(
        self, request: GenerationRequest, *, is_live: bool = False
    ) -> GenerationJob:
        self._validator.check_generation(request)
        _check_beams(request)
        text, token_ids = self._prompt(request)
        kept, truncated = self._leave_room(token_ids, request)
        prompt = TokenPrompt(
            key=_UNKEYED,
            token_ids=kept,
            max_new_tokens=request.max_new_tokens,
            stop_ids=frozenset() if request.ignore_eos else self._tokenizer.eos_ids,
            do_sample=request.do_sample,
            temperature=request.temperature if request.do_sample else 0.0,
            top_p=request.top_p if request.do_sample else 1.0,
            top_k=min(request.top_k, self._vocabulary) if request.do_sample else 0,
            seed=request.seed if request.do_sample else None,
            num_beams=request.num_beams,
            logprobs=request.logprobs,
            stop=tuple(request.stop),
        )
        return GenerationJob(prompt, text, request.metadata, truncated, is_live)

    def encode_loglikelihood(self, request: LoglikelihoodRequest) -> ScoringJob:
        self._validator.check_loglikelihood(request)
        context = request.context
        if request.messages is not None and request.context_input_ids is None:
            context = self._render(request.messages, add_generation_prompt=True)
            _check_thought(context, request.continuation)
        context_ids, continuation_ids = encode_request(
            self._tokenizer, request, context, contexts=self._contexts
        )
        self._check_vocabulary(context_ids)
        self._check_vocabulary(continuation_ids)
        pair = fit_pair(
            context_ids,
            continuation_ids,
            max_model_len=self._max_model_len,
            truncation=request.truncation,
        )
        span = replace(pair.span, top_logprobs=self._limit_top(request.top_logprobs))
        conclude = partial(_make_output, span, pair.truncated_tokens, request.metadata)
        return ScoringJob(span, conclude, request.metadata)

    def encode_rolling(self, request: RollingLoglikelihoodRequest) -> list[TokenSpan]:
        self._validator.check_rolling(request)
        given = request.input_ids
        token_ids = self._tokenizer.encode(request.text) if given is None else list(given)
        token_ids = strip_leading(self._tokenizer, token_ids)
        leading = conditioning_id(self._tokenizer)
        self._check_vocabulary([leading, *token_ids])
        windows = rolling_windows(token_ids, leading, self._max_model_len)
        top = self._limit_top(request.top_logprobs)
        return [replace(window, top_logprobs=top) for window in windows]

    def encode_distribution(self, request: DistributionRequest) -> TokenSpan:
        self._validator.check_distribution(request)
        token_ids = list(request.input_ids)
        self._check_vocabulary(token_ids)
        if len(token_ids) > self._max_model_len + 1:
            raise ContextLengthError(
                f"a request for distributions has {len(token_ids)} ids and max_model_len is "
                f"{self._max_model_len}; it is never cut: ask for at most one id more than that"
            )
        return TokenSpan(token_ids, request.start)

    def make_probe(self, token_ids: Sequence[int], length: int) -> GenerationJob:
        """A greedy request on ids, for the self check."""
        prompt = TokenPrompt(_UNKEYED, list(token_ids), length, logprobs=2)
        return GenerationJob(prompt, "", {})

    def _prompt(self, request: GenerationRequest) -> tuple[str, list[int]]:
        tokenizer = self._tokenizer
        if request.input_ids is not None:
            token_ids = list(request.input_ids)
            self._check_vocabulary(token_ids)
            return tokenizer.decode(token_ids), token_ids
        if request.rendered_prompt is not None:
            text = request.rendered_prompt
        elif request.messages is not None:
            adds, tools = request.add_generation_prompt, request.tools
            text = self._render(request.messages, add_generation_prompt=adds, tools=tools)
        else:
            text = request.prompt or ""
        token_ids = encode_with_leading(tokenizer, text) or [conditioning_id(tokenizer)]
        self._check_vocabulary(token_ids)
        return text, token_ids

    def _leave_room(
        self, token_ids: list[int], request: GenerationRequest
    ) -> tuple[list[int], int]:
        room = self._max_model_len - request.max_new_tokens
        if room < 1:
            raise ContextLengthError(
                f"max_new_tokens={request.max_new_tokens} leaves no room for a prompt: "
                f"max_model_len is {self._max_model_len}"
            )
        excess = max(0, len(token_ids) - room)
        if excess and request.truncation == "error":
            raise ContextLengthError(
                f"the prompt has {len(token_ids)} tokens; with max_new_tokens="
                f"{request.max_new_tokens} and max_model_len={self._max_model_len} there is room "
                f"for {room}, and truncation='error' forbids a cut"
            )
        return token_ids[excess:], excess

    def _render(self, messages: Sequence[Message], **options: object) -> str:
        template = self._tokenizer.chat_template
        if template is None:
            raise InvalidRequestError(
                "messages need a chat template and this model has none; give rendered_prompt, or "
                "the tokenizer_path of the matching chat model"
            )
        rendered = template.render(messages, **options)  # pyright: ignore[reportArgumentType]
        check_unicode("the rendered chat", rendered)
        return rendered

    def _limit_top(self, count: int | None) -> int | None:
        return None if count is None else min(count, self._vocabulary)

    def _check_vocabulary(self, token_ids: Sequence[int]) -> None:
        """Refuse ids that the model has no embedding for; it may have some without a token."""
        largest = max(token_ids, default=0)
        known, embedded = self._tokenizer.vocabulary_size, self._vocabulary
        if largest < embedded:
            return
        if largest < known:
            raise InvalidRequestError(
                f"token id {largest} is one of the tokenizer's {known} and outside the model's "
                f"vocabulary of {embedded}; set tokenizer_path to the tokenizer of this model"
            )
        raise InvalidRequestError(
            f"token id {largest} is outside the vocabulary of {embedded} tokens"
        )


def _check_thought(context: str, continuation: str) -> None:
    """Refuse an answer where a template has the model think first: its score says nothing."""
    opening, closing = _THOUGHT
    if context.rstrip().endswith(opening) and closing not in continuation:
        raise InvalidRequestError(
            f"the chat template ends the prompt with {opening}, so an answer right behind it would "
            f"be scored as a thought; set the template's variable that leaves the thought out in "
            f"chat_template_kwargs of the model (enable_thinking: false, say), or give the prompt "
            f"as context instead of messages, with {closing} at its end"
        )


def _check_beams(request: GenerationRequest) -> None:
    if request.num_beams > 1 and request.logprobs is not None:
        raise UnsupportedRequestError(
            f"num_beams={request.num_beams} with logprobs={request.logprobs}: a beam search gives "
            f"no log-probabilities of its tokens; ask for one of the two"
        )


def _make_output(
    span: TokenSpan, truncated_tokens: int, metadata: dict[str, Any], score: TokenScore
) -> LoglikelihoodOutput:
    logprobs = complete_logprobs(span, score)
    return LoglikelihoodOutput(
        math.fsum(logprobs),
        score.is_greedy,
        len(logprobs),
        metadata,
        token_ids=list(span.token_ids[span.start :]),
        token_logprobs=logprobs,
        prompt_tokens=span.start,
        truncated_tokens=truncated_tokens,
        runtime=score.runtime,
        top_logprobs=complete_top_logprobs(span, score),
    )


def catch_failure(prepare: Callable[[Any], J]) -> Callable[[Any], J | RequestFailure]:
    """Return `prepare` with an error as a value: it is no other request's business."""

    def prepare_or_fail(request: object) -> J | RequestFailure:
        try:
            with runtime_errors("preparing a request"):
                return prepare(request)
        except (InvalidRequestError, UnsupportedRequestError, EngineRuntimeError) as error:
            return RequestFailure(error, read_metadata(request))

    return prepare_or_fail
