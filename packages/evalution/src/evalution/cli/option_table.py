"""Options of an engine or a suite as a table for people, from their JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rich import box
from rich.table import Table

_NAMED = {
    "EngineSpec": "engine",
    "filter": "filter",
    "filters": "filter or list of filters",
}
_NULL = {"type": "null"}


def options_table(name: str, schema: Mapping[str, Any]) -> Table:
    """Each option with its type and default, as a spec writes them; a secret one shows none.

    An option whose default is null is `not set`, and what it takes besides is its type.
    """
    needed: list[str] = schema.get("required", [])
    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    table = Table(title=f"options of {name}", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("option", "type", "default"):
        table.add_column(column, overflow="fold")
    for option, shape in properties.items():
        default = "(needed)" if option in needed else _default_text(shape.get("default"))
        kind = type_text(shape if option in needed else _settable(shape))
        table.add_row(option, kind, "(secret)" if shape.get("writeOnly") else default)
    return table


def type_text(shape: Mapping[str, Any]) -> str:
    """A JSON schema's type in a few words: `integer or null`, `'left' | 'error'`."""
    if "enum" in shape:
        return " | ".join(value_text(value) for value in shape["enum"])
    if "const" in shape:
        return value_text(shape["const"])
    if "anyOf" in shape:
        return " or ".join(dict.fromkeys(type_text(part) for part in shape["anyOf"]))
    if "$ref" in shape:
        name = str(shape["$ref"]).rsplit("/", 1)[-1]
        return _NAMED.get(name, name)
    if shape.get("type") == "array":
        return f"list of {type_text(shape.get('items', {}))}"
    if shape.get("type") == "object" and isinstance(shape.get("additionalProperties"), Mapping):
        return f"mapping to {type_text(shape['additionalProperties'])}"
    return str(shape.get("type", "any"))


def value_text(value: object) -> str:
    """A value as YAML has it, with quotes around every text: `null`, `false`, `[1, 'a']`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(value_text(part) for part in cast(list[object], value))}]"
    if isinstance(value, dict):
        pairs = cast(dict[str, object], value).items()
        return f"{{{', '.join(f'{name}: {value_text(part)}' for name, part in pairs)}}}"
    return repr(value)


def _default_text(default: object) -> str:
    return "not set" if default is None else value_text(default)


def _settable(shape: Mapping[str, Any]) -> Mapping[str, Any]:
    """The shape without null where null is the default: nobody has to write it."""
    if shape.get("default") is not None or "anyOf" not in shape:
        return shape
    return {"anyOf": [part for part in shape["anyOf"] if part != _NULL]}
