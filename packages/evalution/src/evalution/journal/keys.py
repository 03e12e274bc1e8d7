"""Keys of answers: a digest of the answerer and of every field of the request that reaches it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from pathlib import PurePath
from typing import Any, cast

from evalution_core import BaseEngine, GenerationRequest, Model, RollingLoglikelihoodRequest
from evalution_core.engine import CONTRACT_VERSION
from evalution_core.kinds import RequestKind
from evalution_core.options import numeric_options
from evalution_core.redaction import SECRET_FIELD
from evalution_core.requests import Request


class _OpaqueValueError(ValueError):
    """A value that can't be spelled out, such as an image object."""


def request_content(request: Request) -> str | None:
    """Return all fields but `metadata`, as JSON; None where a value can't be spelled out.

    A list and a tuple are the same, and so are 1 and 1.0 for a field that is a float. A field that
    is None is left out: a field that comes later with None as its default changes no content.
    """
    kind = type(request)
    if kind not in _FIELDS:  # a subclass may hold anything
        return None
    label, spellings = _FIELDS[kind]
    found: dict[str, Any] = {"request": label}
    try:
        for name, spelled in spellings:
            if (value := getattr(request, name)) is not None:
                found[name] = value if spelled is None else spelled(value)
        return _ENCODER.encode(found)
    except _OpaqueValueError:
        return None


def is_plain(request: Request) -> bool:
    """True if a template can show nothing of the request but roles and texts."""
    if isinstance(request, RollingLoglikelihoodRequest):
        return True
    if isinstance(request, GenerationRequest) and request.tools is not None:
        return False
    return all(_is_plain_message(message) for message in request.messages or ())


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


def _flag(value: object) -> bool:
    return bool(value)


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
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=_foreign
)

_Spelling = Callable[[Any], object]
_SPELLINGS: dict[str, _Spelling] = {
    "messages": _value,
    "tools": _value,
    "add_generation_prompt": _flag,
    "do_sample": _flag,
    "ignore_eos": _flag,
    "temperature": _number,
    "top_p": _number,
}


def _spellings(kind: type[Request]) -> list[tuple[str, _Spelling | None]]:
    names = sorted(set(kind.__dataclass_fields__) - {"metadata", "_"})
    return [(name, _SPELLINGS.get(name)) for name in names]


_FIELDS = {kind.request: (kind.label, _spellings(kind.request)) for kind in RequestKind}


_KEY_VERSION = 1
"""Changes when the same answer gets another key, or a default of a request another meaning."""

LATER_FIELDS = ("chat_template_kwargs",)
"""Fields of a model that the first journals didn't know: left empty, they count for nothing."""

_DIGEST_SIZE = 32
_DECISIVE = ("dtype", "max_model_len")
"""Settings that an engine may choose when it loads the model, and that change answers."""


@dataclass(frozen=True, slots=True)
class AnswerBase:
    """Digest of the answerer; `is_shareable`: known by content, so other runs may use answers."""

    digest: bytes
    is_shareable: bool


def make_answer_base(
    *,
    engine: BaseEngine | None,
    model: Model,
    identity: Mapping[str, Any] | None,
    execution: Mapping[str, Any] | None,
    scoring_policy: Mapping[str, Any],
    software: Mapping[str, str] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> AnswerBase:
    """Identify the answerer: the model by content, the engine with the options that change numbers.

    Args:
        engine: None for a session that was given; its answers are never shared.
        model: all but its label counts; its path only where there is no `identity`.
        identity: `session.identity()`.
        execution: `session.describe_execution()`, of which dtype and max_model_len count.
        scoring_policy: the rules of scoring, as recorded in results.
        software: versions of the engine and its runtime, as far as they are known: another release
            may give other numbers.
        variables: those that the session's chat template is rendered with, where `model` doesn't
            have them: the session was given, or a server has bound them.
    """
    ignored = {"label"} if identity is None else {"label", "path"}
    ignored |= {name for name in LATER_FIELDS if not getattr(model, name)}
    found: dict[str, Any] = {
        "contract": CONTRACT_VERSION,
        "keys": _KEY_VERSION,
        "identity": identity,
        "model": {f.name: getattr(model, f.name) for f in fields(model) if f.name not in ignored},
        "execution": {name: (execution or {}).get(name) for name in _DECISIVE},
        "scoring_policy": scoring_policy,
        "engine": None,
    }
    if software:
        found["software"] = software
    if variables:
        found["chat_template_kwargs"] = variables
    if engine is not None:
        kind = type(engine)
        found["engine"] = f"{kind.__module__}:{kind.__qualname__}"
        found["options"] = {name: getattr(engine, name) for name in numeric_options(engine)}
    objects: list[object] = []
    text = json.dumps(_spelled(found, objects), ensure_ascii=False, sort_keys=True)
    return AnswerBase(
        _digest(b"", text),
        engine is not None and identity is not None and not objects,
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
    return None if content is None else _digest(base.digest, content)


def _digest(base: bytes, text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return blake2b(encoded, digest_size=_DIGEST_SIZE, key=base).digest()


def _spelled(value: object, objects: list[object]) -> object:
    """Return `value` as JSON, without declared secrets; objects known only by class are noted.

    Nothing is redacted: options that differ in what looks like a secret may differ in numbers.
    """
    if isinstance(value, Enum):
        return _spelled(value.value, objects)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        shown = [f.name for f in fields(value) if not f.metadata.get(SECRET_FIELD)]
        return {name: _spelled(getattr(value, name), objects) for name in shown}
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value).items()
        pairs = [[_spelled(key, objects), _spelled(member, objects)] for key, member in items]
        return {"pairs": sorted(pairs, key=json.dumps)}
    if isinstance(value, list | tuple):
        return [_spelled(member, objects) for member in cast(Sequence[object], value)]
    if isinstance(value, set | frozenset):
        members = [_spelled(member, objects) for member in cast("frozenset[object]", value)]
        return sorted(members, key=json.dumps)
    objects.append(value)
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
