"""Answers as JSON text and back, each field exactly."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any, cast

import evalution_core
from evalution.redaction import mask_text, mask_value
from evalution_core import (
    EngineRuntimeError,
    EvalutionError,
    RequestFailure,
)
from evalution_core.kinds import RequestKind, find_kind
from evalution_core.requests import Output, Request


class UnreadableAnswerError(EvalutionError, ValueError):
    """A recorded answer isn't one that this version of Evalution knows how to read."""


class DamagedAnswerError(UnreadableAnswerError):
    """A recorded answer is damaged: it isn't the JSON of any answer."""


_FAILURE = "failure"
_OUTPUTS = tuple(kind.output for kind in RequestKind)
_FIELDS: dict[type[Output], tuple[str, ...]] = {
    kind: tuple(f.name for f in fields(kind) if f.name != "metadata") for kind in _OUTPUTS
}
_REQUIRED: dict[type[Output], frozenset[str]] = {
    kind: frozenset(
        f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING
    )
    for kind in _OUTPUTS
}


def encode_answer(answer: Output | RequestFailure) -> str:
    """Return `answer` as JSON, without `metadata` (the request has it); secrets are redacted.

    Infinity and NaN are written as such. A failure keeps the name of its class among those of
    `evalution_core`, and its message: it is not the live one, so score
    `decode_answer(encode_answer(failure), request)` in its place.

    Raises:
        EngineRuntimeError: a field holds what JSON can't.
    """
    if isinstance(answer, RequestFailure):
        return _ENCODER.encode({_FAILURE: _to_failure_fields(answer.error)})
    # An engine's own subclass is recorded as what the contract knows it for.
    kind = next(kind for kind in _FIELDS if isinstance(answer, kind))
    held: dict[str, Any] = {}
    for name in _FIELDS[kind]:
        value = getattr(answer, name)
        if value is None and name not in _REQUIRED[kind]:
            continue
        held[name] = value
    if "runtime" in held:
        held["runtime"] = mask_value(held["runtime"])
    try:
        if "top_logprobs" in held:
            held["top_logprobs"] = [list(step.items()) for step in held["top_logprobs"]]
        return _ENCODER.encode({_to_kind(kind).label: held})
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise EngineRuntimeError(
            f"the engine gave a {kind.__name__} that can't be recorded: {mask_text(str(error))}"
        ) from error


def decode_answer(text: str, request: Request) -> Output | RequestFailure:
    """Return the answer to `request`, with the `metadata` of the request.

    Raises:
        UnreadableAnswerError: it is damaged, has a field of a newer version, or answers another
            kind of request.
    """
    try:
        ((label, held),) = json.loads(text).items()
        if label == _FAILURE:
            return RequestFailure(_make_error(**held), request.metadata)
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise DamagedAnswerError(f"a recorded answer can't be read: {error}") from error
    kind = _to_kind(type(request))
    if label != kind.label:
        raise UnreadableAnswerError(
            f"a recorded answer is for a {label} request, not for a {kind.label} request"
        )
    return _make_output(kind.output, held, request.metadata)


def _to_kind(kind: type[Request] | type[Output]) -> RequestKind:
    found = find_kind(kind)
    assert found is not None
    return found


def _make_output(kind: type[Output], held: object, metadata: dict[str, Any]) -> Output:
    names = set(cast("dict[str, Any]", held)) if isinstance(held, dict) else set[str]()
    if missing := sorted(_REQUIRED[kind] - names):
        raise UnreadableAnswerError(f"a recorded {kind.__name__} lacks {', '.join(missing)}")
    if unknown := sorted(names.difference(_FIELDS[kind])):
        raise UnreadableAnswerError(
            f"a recorded {kind.__name__} holds {', '.join(unknown)}, which this version of "
            "Evalution doesn't know; upgrade evalution to read it"
        )
    found = cast("dict[str, Any]", held)
    if (steps := found.get("top_logprobs")) is not None:
        try:
            found["top_logprobs"] = [dict(step) for step in steps]
        except (TypeError, ValueError) as error:
            raise DamagedAnswerError(f"a recorded answer can't be read: {error}") from error
    return kind(**found, metadata=metadata)


def _to_failure_fields(error: object) -> dict[str, str]:
    if not isinstance(error, EvalutionError):
        return {
            "type": EngineRuntimeError.__name__,
            "message": mask_text(f"the session gave {error!r} as a request's failure"),
        }
    known = (
        kind.__name__ for kind in type(error).__mro__ if _find_core_error(kind.__name__) is kind
    )
    return {"type": next(known), "message": mask_text(str(error))}


def _make_error(type: str, message: str) -> EvalutionError:
    kind = _find_core_error(type) or EngineRuntimeError
    return kind(message)


def _find_core_error(name: str) -> type[EvalutionError] | None:
    kind: object = getattr(evalution_core, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, EvalutionError) else None


def _to_plain(value: object) -> object:
    """Return a scalar or an array of a library as Python's."""
    if callable(as_list := getattr(value, "tolist", None)):
        return as_list()
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} isn't a plain value")


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_to_plain)
