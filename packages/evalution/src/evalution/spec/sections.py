"""What stands under a section of a spec: a mapping, or a name with its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from evalution_core import ConfigurationError

EXAMPLES = {
    "backend": "; for instance `backend: {kind: local, params: {dtype: float32}}`",
    "engine": "; for instance `engine: {type: Reference}`",
    "test": "; for instance `{type: generation, data: rows.jsonl, …}`",
    "tests": "; for instance `tests: [{type: generation, data: rows.jsonl, …}]`",
}
"""How a section is written, for messages."""

_KINDS: dict[type, str] = {
    int: "a number",
    float: "a number",
    bool: "true or false",
    str: "a text",
}


def declaration(declared: object, what: str) -> tuple[str, Mapping[str, Any]]:
    """The name and the options of the engine, test or backend that is declared in either form.

    Raises:
        ConfigurationError: it names none, or mixes the forms.
    """
    if isinstance(declared, str):
        return declared, {}
    fields = dict(as_mapping(declared, f"the {what}"))
    for key in ("type", "kind"):
        if key not in fields:
            continue
        name = fields.pop(key)
        if not isinstance(name, str):
            raise ConfigurationError(f"the {what}'s {key} must be a name, got {name!r}")
        return name, _options(fields, key, what)
    raise ConfigurationError(
        f"the {what} names no type (it has: {', '.join(fields) or 'nothing'}){EXAMPLES[what]}"
    )


def _options(fields: Mapping[str, Any], key: str, what: str) -> Mapping[str, Any]:
    if "params" not in fields:
        if key == "kind" and fields:
            raise ConfigurationError(
                f"the {what} has kind and {', '.join(fields)} side by side; put options under "
                "params, or write type in place of kind"
            )
        return fields
    if beside := [name for name in fields if name != "params"]:
        raise ConfigurationError(
            f"the {what} has options both under params and beside it: {', '.join(beside)}"
        )
    return as_mapping(fields["params"] or {}, f"the {what}'s params")


def as_mapping(found: object, what: str) -> Mapping[str, Any]:
    """`found`, where it is a mapping with text as keys.

    Raises:
        ConfigurationError: it is something else; `what` is its name in the message.
    """
    if not isinstance(found, Mapping):
        shown = "empty" if found is None else _KINDS.get(type(found), f"a {type(found).__name__}")
        raise ConfigurationError(f"{what} must be a mapping of names to values, but it is {shown}")
    mapping = cast(Mapping[Any, Any], found)
    for key in mapping:
        if not isinstance(key, str):
            raise ConfigurationError(f"{what} has the key {key!r}, which is no text; quote it")
    return mapping
