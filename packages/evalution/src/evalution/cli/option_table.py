"""Options of an engine or a suite as a table for people, from their JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

_NAMED = {"filter": "filter", "filters": "filter or list of filters"}


def options_table(name: str, schema: Mapping[str, Any]) -> Table:
    """Each option with its type and default; a secret one shows none."""
    needed: list[str] = schema.get("required", [])
    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    table = Table(title=f"options of {name}", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("option", "type", "default"):
        table.add_column(column, overflow="fold")
    for option, shape in properties.items():
        default = "(needed)" if option in needed else repr(shape.get("default"))
        table.add_row(option, type_text(shape), "(secret)" if shape.get("writeOnly") else default)
    return table


def type_text(shape: Mapping[str, Any]) -> str:
    """A JSON schema's type in a few words: `integer or null`, `'left' | 'error'`."""
    if "enum" in shape:
        return " | ".join(repr(value) for value in shape["enum"])
    if "const" in shape:
        return repr(shape["const"])
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
