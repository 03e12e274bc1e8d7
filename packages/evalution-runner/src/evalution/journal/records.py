"""Records of the journal: the keys of answers, and answers as JSON, each field exactly.

A key is a digest of the answerer and of every field of the request that reaches it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from pathlib import PurePath
from typing import Any, cast

import evalution_core
from evalution.redaction import mask_text, mask_value
from evalution_core import (
    BaseEngine,
    EngineRuntimeError,
    EvalutionError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    RequestFailure,
    RollingLoglikelihoodRequest,
)
from evalution_core.engine import CONTRACT_VERSION
from evalution_core.kinds import RequestKind, find_kind
from evalution_core.options import numeric_options
from evalution_core.redaction import SECRET_FIELD
from evalution_core.requests import Output, Request


class _OpaqueValueError(ValueError):
    """A value that can't be spelled out, such as an image object."""


def request_content(request: Request) -> str | None:
    """Return all fields but `metadata`, as JSON; None where a value can't be spelled out.

    A list and a tuple are the same, and so are 1 and 1.0 for a field that is a float. A field that
    is None is left out: a field that comes later with None as its default changes no content.
    """
    kind = type(request)
    if kind not in _SPELT:  # a subclass may hold anything
        return None
    label, spellings = _SPELT[kind]
    found: dict[str, Any] = {"request": label}
    try:
        for name, spelled in spellings:
            if (value := getattr(request, name)) is not None:
                found[name] = value if spelled is None else spelled(value)
        return _KEY_ENCODER.encode(found)
    except _OpaqueValueError:
        return None


def is_plain(request: Request) -> bool:
    """True if a template can show nothing of the request but roles and texts."""
    match request:
        case GenerationRequest(tools=tools) if tools is not None:
            return False
        case GenerationRequest() | LoglikelihoodRequest():
            return all(_is_plain_message(message) for message in request.messages or ())
        case RollingLoglikelihoodRequest():
            return True


def _is_plain_message(message: Mapping[str, Any]) -> bool:
    if set(message) != {"role", "content"}:
        return False
    content: object = message["content"]
    if isinstance(content, str):
        return True
    return isinstance(content, list | tuple) and all(
        _is_plain_part(part) for part in cast(Sequence[object], content)
    )


def _is_plain_part(part: object) -> bool:
    if not isinstance(part, Mapping):
        return False
    held = cast(Mapping[object, object], part)
    return set(held) == {"type", "text"} and held["type"] == "text"


def _number(value: Any) -> object:
    try:
        return float(value) + 0.0  # -0.0 is 0.0
    except (TypeError, ValueError):  # the session will refuse it
        return value


def _value(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value)
        if not all(isinstance(key, str) for key in items):
            raise _OpaqueValueError
        return {key: _value(member) for key, member in items.items()}
    if isinstance(value, list | tuple):
        return [_value(member) for member in cast(Sequence[object], value)]
    raise _OpaqueValueError


def _foreign(value: object) -> object:
    """Return numbers and arrays of a library, and other sequences of ids, as JSON knows them."""
    if callable(as_list := getattr(value, "tolist", None)):
        return as_list()
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return list(cast(Sequence[object], value))
    raise _OpaqueValueError


# With ASCII alone, a character beyond 16 bits and its two surrogates would be spelled the same.
_KEY_ENCODER = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=_foreign
)

_Spelling = Callable[[Any], object]
_SPELLINGS: dict[str, _Spelling] = {
    "messages": _value,
    "tools": _value,
    "add_generation_prompt": bool,
    "do_sample": bool,
    "ignore_eos": bool,
    "temperature": _number,
    "top_p": _number,
}


def _spellings(kind: type[Request]) -> list[tuple[str, _Spelling | None]]:
    names = sorted(set(kind.__dataclass_fields__) - {"metadata", "_"})
    return [(name, _SPELLINGS.get(name)) for name in names]


_SPELT = {kind.request: (kind.label, _spellings(kind.request)) for kind in RequestKind}


_KEY_VERSION = 3
"""Changes when the same answer gets another key, or a default of a request another meaning."""

_DIGEST_SIZE = 32
_DECISIVE = ("device", "dtype", "max_model_len", "tokenizer")
"""Settings that an engine may choose when it loads the model, and that change answers."""


def list_decisive(execution: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings that change answers; of a device its kind, as `cuda` of `cuda:1`."""
    found = {name: (execution or {}).get(name) for name in _DECISIVE}
    return found | {"device": str(found["device"]).partition(":")[0]}


@dataclass(frozen=True, slots=True)
class AnswerBase:
    """Digest of the answerer; `is_shareable`: known by content, so other runs may use answers.

    `day` is the day that the chat template prints, if it does: a run goes on over several, and
    shares its answers to chats with runs of the same day.
    """

    digest: bytes
    is_shareable: bool
    day: str | None = None


def make_answer_base(
    *,
    engine: BaseEngine | None,
    model: Model,
    identity: Mapping[str, Any] | None,
    execution: Mapping[str, Any] | None,
    scoring_policy: Mapping[str, Any],
    software: Mapping[str, str] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    day: str | None = None,
) -> AnswerBase:
    """Identify the answerer: the model by content, the engine with the options that change numbers.

    Args:
        engine: None for a session that was given; its answers are never shared.
        model: all but its label counts; its path only where there is no `identity`.
        identity: `session.identity()`.
        execution: `session.describe_execution()`, of which some settings count.
        scoring_policy: the rules of scoring, as recorded in results.
        software: versions of the engine and its runtime, as far as they are known: another release
            may give other numbers.
        tokenizer: the parts of the tokenizer's record that decide which ids the model is fed:
            another release may read the same files otherwise, and a server binds variables.
        day: as in `AnswerBase`.
    """
    ignored = {"label"} if identity is None else {"label", "path"}
    found: dict[str, Any] = {
        "contract": CONTRACT_VERSION,
        "keys": _KEY_VERSION,
        "identity": identity,
        "model": {f.name: getattr(model, f.name) for f in fields(model) if f.name not in ignored},
        "execution": list_decisive(execution),
        "scoring_policy": scoring_policy,
        "engine": None,
    }
    if software:
        found["software"] = software
    if tokenizer:
        found["tokenizer"] = tokenizer
    if engine is not None:
        kind = type(engine)
        found["engine"] = f"{kind.__module__}:{kind.__qualname__}"
        found["options"] = {name: getattr(engine, name) for name in numeric_options(engine)}
    objects: list[object] = []
    text = json.dumps(_to_json_value(found, objects), ensure_ascii=False, sort_keys=True)
    return AnswerBase(
        _digest(b"", text),
        engine is not None and identity is not None and not objects,
        day,
    )


def make_request_key(
    base: AnswerBase, *, suite: str, row: int, position: int, request: Request
) -> bytes | None:
    """Return the key of one request of a run; metadata doesn't count.

    None where a message holds a value that can't be spelled out, such as an image object: its
    answer is not journaled.
    """
    content = request_content(request)
    if content is None:
        return None
    return _digest(base.digest, f"{len(suite)} {suite} {row} {position} {content}")


def make_cache_key(base: AnswerBase, request: Request) -> bytes | None:
    """Return the key under which any run may use the answer; None where it may not be shared.

    It may not if the answerer isn't known by content, if the answer is sampled without a seed, or
    if messages hold more than roles and texts, of which a template may show what a key can't.
    """
    if not base.is_shareable or not is_plain(request):
        return None
    if isinstance(request, GenerationRequest) and request.do_sample and request.seed is None:
        return None
    content = request_content(request)
    if content is None:
        return None
    is_chat = getattr(request, "messages", None) is not None
    return _digest(base.digest, f"{base.day} {content}" if is_chat and base.day else content)


def _digest(base: bytes, text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return blake2b(encoded, digest_size=_DIGEST_SIZE, key=base).digest()


def _to_json_value(value: object, objects: list[object]) -> object:
    """Return `value` as JSON, without declared secrets; objects known only by class are noted.

    Nothing is redacted: options that differ in what looks like a secret may differ in numbers.
    """
    if isinstance(value, Enum):
        return _to_json_value(value.value, objects)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, BaseEngine):
        kind = type(value)
        options = {name: getattr(value, name) for name in numeric_options(value)}
        return [f"{kind.__module__}:{kind.__qualname__}", _to_json_value(options, objects)]
    if is_dataclass(value) and not isinstance(value, type):
        shown = [f.name for f in fields(value) if not f.metadata.get(SECRET_FIELD)]
        return {name: _to_json_value(getattr(value, name), objects) for name in shown}
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value).items()
        pairs = [
            [_to_json_value(key, objects), _to_json_value(member, objects)] for key, member in items
        ]
        return {"pairs": sorted(pairs, key=json.dumps)}
    if isinstance(value, list | tuple):
        return [_to_json_value(member, objects) for member in cast(Sequence[object], value)]
    if isinstance(value, set | frozenset):
        members = [_to_json_value(member, objects) for member in cast("frozenset[object]", value)]
        return sorted(members, key=json.dumps)
    objects.append(value)
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


class UnreadableAnswerError(EvalutionError, ValueError):
    """A recorded answer isn't one that this version of Evalution knows how to read."""


_FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class _OutputForm:
    """The JSON of one kind's outputs."""

    label: str
    output: type[Output]
    names: tuple[str, ...]
    required: frozenset[str]


def _make_form(kind: RequestKind) -> _OutputForm:
    held = [f for f in fields(kind.output) if f.name != "metadata"]
    required = [f.name for f in held if f.default is MISSING and f.default_factory is MISSING]
    return _OutputForm(kind.label, kind.output, tuple(f.name for f in held), frozenset(required))


_FORMS = {kind.output: _make_form(kind) for kind in RequestKind}


def encode_answer(answer: Output | RequestFailure) -> str:
    """Return `answer` as JSON, without `metadata` (the request has it); secrets are redacted.

    Infinity and NaN are written as such. A failure keeps the name of its class among those of
    `evalution_core`, and its message: it is not the live one, so score
    `decode_answer(encode_answer(failure), request)` in its place.

    Raises:
        EngineRuntimeError: a field holds what JSON can't.
    """
    if isinstance(answer, RequestFailure):
        return _ANSWER_ENCODER.encode({_FAILURE: _to_failure_fields(answer.error)})
    form = _FORMS.get(type(answer))
    if form is None:  # an engine's own subclass is recorded as what the contract knows it for
        form = next(form for kind, form in _FORMS.items() if isinstance(answer, kind))
    held: dict[str, Any] = {}
    for name in form.names:
        value = getattr(answer, name)
        if value is not None or name in form.required:
            held[name] = value
    if "runtime" in held:
        held["runtime"] = mask_value(held["runtime"])
    try:
        if "top_logprobs" in held:
            held["top_logprobs"] = [list(step.items()) for step in held["top_logprobs"]]
        return _ANSWER_ENCODER.encode({form.label: held})
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        name = form.output.__name__
        raise EngineRuntimeError(
            f"the engine gave a {name} that can't be recorded: {mask_text(str(error))}"
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
        raise UnreadableAnswerError(f"a recorded answer can't be read: {error}") from error
    kind = find_kind(request)
    assert kind is not None
    if label != kind.label:
        raise UnreadableAnswerError(
            f"a recorded answer is for a {label} request, not for a {kind.label} request"
        )
    return _make_output(_FORMS[kind.output], held, request.metadata)


def _make_output(form: _OutputForm, held: object, metadata: dict[str, Any]) -> Output:
    names = set(cast("dict[str, Any]", held)) if isinstance(held, dict) else set[str]()
    kind = form.output.__name__
    if missing := sorted(form.required - names):
        raise UnreadableAnswerError(f"a recorded {kind} lacks {', '.join(missing)}")
    if unknown := sorted(names.difference(form.names)):
        raise UnreadableAnswerError(
            f"a recorded {kind} holds {', '.join(unknown)}, which this version of "
            "Evalution doesn't know; upgrade evalution to read it"
        )
    found = cast("dict[str, Any]", held)
    try:
        if isinstance(found.get("logprob"), int):
            float(found["logprob"])  # or it is one that no float can hold
        if (steps := found.get("top_logprobs")) is not None:
            found["top_logprobs"] = [dict(step) for step in steps]
    except (OverflowError, TypeError, ValueError) as error:
        raise UnreadableAnswerError(f"a recorded answer can't be read: {error}") from error
    return form.output(**found, metadata=metadata)


def _to_failure_fields(error: EvalutionError) -> dict[str, str]:
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


_ANSWER_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_to_plain)
