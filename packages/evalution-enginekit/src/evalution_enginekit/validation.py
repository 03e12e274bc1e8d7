"""Which requests may enter: what is wrong for every engine, and what this one can't do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

from evalution_core import (
    Capability,
    EvalutionError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
    raise_failures,
)

Q = TypeVar("Q")
T = TypeVar("T")


class Admission:
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
        """`lacking` says of a capability why this session hasn't got it."""
        self._engine = engine
        self._capabilities = capabilities
        self._lacking = dict(lacking or {})

    def check_all(self, check: Callable[[Q], T], requests: Sequence[Q]) -> list[T]:
        """Return `check` of every request; raise one error for all that fail, before any ran."""
        results: list[T] = []
        failures: dict[int, EvalutionError] = {}
        for index, request in enumerate(requests):
            try:
                results.append(check(request))
            except (InvalidRequestError, UnsupportedRequestError) as error:
                failures[index] = error
        if failures:
            raise_failures(failures, len(requests))
        return results

    def generation(self, request: GenerationRequest) -> None:
        _require_type(request, GenerationRequest)
        self._need(Capability.GENERATE, "generate", asked=True)
        if request.input_ids is not None:
            self._check_ids("input_ids", request.input_ids)
        elif request.rendered_prompt is not None:
            _check_text("rendered_prompt", request.rendered_prompt)
        elif request.messages is not None:
            self._check_messages(request.messages)
        elif request.prompt is not None:
            _check_text("prompt", request.prompt)
        else:
            raise InvalidRequestError(
                "a generation request needs input_ids, rendered_prompt, messages or prompt"
            )
        _check_int("max_new_tokens", request.max_new_tokens, least=1)
        _check_int("num_beams", request.num_beams, least=1)
        _check_stops(request.stop)
        _check_truncation(request.truncation)
        for name in ("do_sample", "ignore_eos", "add_generation_prompt"):
            _check_bool(name, getattr(request, name))
        _check_tools(request.tools)
        _check_metadata(request.metadata)
        self._need(Capability.BEAMS, f"num_beams={request.num_beams}", asked=request.num_beams > 1)
        self._need(Capability.IGNORE_EOS, "ignore_eos", asked=request.ignore_eos)
        self._need(Capability.TOOLS, "tools", asked=bool(request.tools))
        if request.logprobs is not None:
            _check_int("logprobs", request.logprobs, least=0)
            self._need(Capability.LOGPROBS, f"logprobs={request.logprobs}", asked=True)
        self._need_truncation(request.truncation)
        self._check_sampling(request)

    def loglikelihood(self, request: LoglikelihoodRequest) -> None:
        _require_type(request, LoglikelihoodRequest)
        self._need(Capability.LOGLIKELIHOOD, "loglikelihood", asked=True)
        _check_text("context", request.context)
        _check_text("continuation", request.continuation)
        for name in ("context_input_ids", "continuation_input_ids"):
            if (token_ids := getattr(request, name)) is not None:
                self._check_ids(name, token_ids, may_be_empty=name == "context_input_ids")
        if request.messages is not None:
            self._check_messages(request.messages)
        _check_metadata(request.metadata)
        if not request.continuation and request.continuation_input_ids is None:
            raise InvalidRequestError("the continuation is empty: there is nothing to score")
        _check_truncation(request.truncation)
        self._need_truncation(request.truncation)

    def rolling(self, request: RollingLoglikelihoodRequest) -> None:
        _require_type(request, RollingLoglikelihoodRequest)
        self._need(Capability.ROLLING, "loglikelihood_rolling", asked=True)
        _check_text("text", request.text)
        _check_metadata(request.metadata)
        if request.input_ids is not None:
            self._check_ids("input_ids", request.input_ids)
        elif not request.text:
            raise InvalidRequestError(
                "a rolling request's text is empty: there is nothing to score"
            )

    def _need(self, capability: Capability, asked_for: str, *, asked: bool) -> None:
        if asked and capability not in self._capabilities:
            declared = ", ".join(sorted(self._capabilities)) or "nothing"
            why = f": {reason}" if (reason := self._lacking.get(capability)) else ""
            raise UnsupportedRequestError(
                f"engine {self._engine} can't do {asked_for}: it lacks the capability "
                f"{capability.value!r} (declares: {declared}){why}"
            )

    def _need_truncation(self, truncation: str) -> None:
        self._need(Capability.TRUNCATION, "truncation='error'", asked=truncation == "error")

    def _check_sampling(self, request: GenerationRequest) -> None:
        if not _is_number(request.temperature) or request.temperature < 0:
            raise InvalidRequestError(f"temperature must be >= 0, got {request.temperature!r}")
        if not _is_number(request.top_p) or not 0 < request.top_p <= 1:
            raise InvalidRequestError(f"top_p must be above 0 and at most 1, got {request.top_p!r}")
        _check_int("top_k", request.top_k, least=0)
        if request.seed is not None:
            _check_int("seed", request.seed, least=0)
        if not request.do_sample:
            return
        self._need(Capability.SAMPLING, "do_sample", asked=True)
        self._need(Capability.SEED, f"seed={request.seed}", asked=request.seed is not None)
        if request.temperature == 0:
            raise InvalidRequestError(
                "do_sample=True needs a temperature above 0; for greedy output leave do_sample off"
            )

    def _check_ids(self, name: str, token_ids: Any, *, may_be_empty: bool = False) -> None:
        self._need(Capability.TOKEN_IDS, name, asked=True)
        if isinstance(token_ids, str) or not isinstance(token_ids, Sequence):
            raise InvalidRequestError(f"{name} must be a sequence of ints, got {token_ids!r}")
        for token_id in cast("Sequence[Any]", token_ids):
            if type(token_id) is not int or token_id < 0:
                raise InvalidRequestError(f"{name} must hold ints >= 0, found {token_id!r}")
        if not token_ids and not may_be_empty:
            raise InvalidRequestError(f"{name} is empty")

    def _check_messages(self, messages: Any) -> None:
        self._need(Capability.CHAT, "messages", asked=True)
        if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
            raise InvalidRequestError(f"messages must be a non-empty list, got {messages!r}")
        for message in cast("Sequence[Any]", messages):
            if not isinstance(message, Mapping):
                raise InvalidRequestError(f"a message must be a dict with a role, got {message!r}")
            entries = cast("Mapping[str, Any]", message)
            if not isinstance(entries.get("role"), str):
                raise InvalidRequestError(f"a message must be a dict with a role, got {message!r}")
            content: Any = entries.get("content")
            if isinstance(content, list):
                self._check_parts(cast("list[Any]", content))
            elif not (isinstance(content, str) or content is None):
                raise InvalidRequestError(
                    f"a message's content must be a string or a list of parts, got {content!r}"
                )

    def _check_parts(self, parts: list[Any]) -> None:
        for part in parts:
            if not isinstance(part, Mapping) or "type" not in part:
                raise InvalidRequestError(
                    f"a message part must be a dict with a type, got {part!r}"
                )
            entries = cast("Mapping[str, Any]", part)
            kind = str(entries["type"])
            self._need(Capability.MULTIMODAL, f"a message part {kind!r}", asked=kind != "text")
            if kind == "text" and not isinstance(entries.get("text"), str):
                raise InvalidRequestError(f"a text part needs a string under 'text', got {part!r}")


def parse_batch_size(batch_size: int | Literal["auto"] | None) -> int | None:
    """Return the cap that a call asks for; None for None and "auto", which leave it to the session.

    Raises:
        InvalidRequestError: it is neither of these nor a positive int.
    """
    if batch_size is None or batch_size == "auto":
        return None
    _check_int("batch_size", batch_size, least=1)
    return batch_size


def _require_type(request: object, expected: type) -> None:
    if not isinstance(request, expected):
        raise InvalidRequestError(f"expected a {expected.__name__}, got {request!r}")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{name} must be a string, got {value!r}")
    check_unicode(name, value)


def check_unicode(name: str, text: str) -> None:
    """Raise `InvalidRequestError` for a lone surrogate, which JSON can spell and no text holds."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{name} is not valid Unicode text: {error}") from error


def _check_int(name: str, value: object, *, least: int) -> None:
    if type(value) is not int or value < least:
        raise InvalidRequestError(f"{name} must be an int >= {least}, got {value!r}")


def _check_bool(name: str, value: object) -> None:
    if type(value) is not bool:
        raise InvalidRequestError(f"{name} must be True or False, got {value!r}")


def _check_tools(tools: object) -> None:
    if tools is None:
        return
    if isinstance(tools, str) or not isinstance(tools, Sequence):
        raise InvalidRequestError(f"tools must be a list of dicts, got {tools!r}")
    for tool in cast("Sequence[Any]", tools):
        if not isinstance(tool, Mapping):
            raise InvalidRequestError(f"a tool must be a dict, got {tool!r}")


def _check_metadata(metadata: object) -> None:
    if not isinstance(metadata, Mapping):
        raise InvalidRequestError(f"metadata must be a dict, got {metadata!r}")


def _check_stops(stops: object) -> None:
    if isinstance(stops, str) or not isinstance(stops, Sequence):
        raise InvalidRequestError(f"stop must be a list of strings, got {stops!r}")
    for stop in cast("Sequence[Any]", stops):
        if not isinstance(stop, str) or not stop:
            raise InvalidRequestError(f"a stop string must not be empty, got {stop!r}")
        check_unicode("a stop string", stop)


def _check_truncation(truncation: object) -> None:
    if truncation not in ("left", "error"):
        raise InvalidRequestError(f"truncation must be 'left' or 'error', got {truncation!r}")


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # pyright: ignore[reportArgumentType]
