"""JSON Schema of an engine's or a suite's options, in the form in which a spec declares them."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, cast, get_type_hints

import pydantic
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from evalution.scoring.filters import FILTERS, Filter
from evalution.suites.declaration import SuiteDeclaration
from evalution_core import BaseEngine, scrub
from evalution_core.options import option_fields

if TYPE_CHECKING:
    from pydantic_core import core_schema

_STEP = {"$ref": "#/$defs/filter"}
_STEPS = {"$ref": "#/$defs/filters"}
_UNRESOLVED = {"x-evalution": "filter"}
"""In place of the reference while pydantic works, which resolves each one that it meets."""


def suite_options_schema(kind: type[SuiteDeclaration]) -> dict[str, Any]:
    """An object with the type and default of each option; filters are steps as a spec writes them.

    An option of a class without a plain form may be anything: the suite itself judges it.
    References to `filter` and `filters` lead to `filter_definitions`.
    """
    hints = get_type_hints(kind)
    options: dict[str, Any] = {}
    # Numbered, since a field of pydantic's may not have every name that an option has.
    for number, option in enumerate(option_fields(kind)):
        settings: dict[str, Any] = {"alias": option.name}
        if option.default is not MISSING:
            settings["default"] = option.default
        elif option.default_factory is not MISSING:
            settings["default_factory"] = option.default_factory
        options[f"option_{number}"] = (hints[option.name], pydantic.Field(**settings))
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    model = pydantic.create_model(kind.__name__, __config__=config, **options)
    return _with_bare_steps(model.model_json_schema(schema_generator=_SpecForm))


def engine_options_schema(kind: type[BaseEngine]) -> dict[str, Any]:
    """The schema of an engine's options, without the credentials of URLs among its defaults."""
    return _scrubbed(kind.options_schema())


def _scrubbed(shape: Any) -> Any:
    if isinstance(shape, dict):
        return {key: _scrubbed(value) for key, value in cast(dict[str, Any], shape).items()}
    if isinstance(shape, list):
        return [_scrubbed(member) for member in cast(list[Any], shape)]
    return scrub(shape) if isinstance(shape, str) else shape


def filter_definitions() -> dict[str, Any]:
    """The schema of one step that is taken from an answer, and of a pipeline of them."""
    return {
        "filter": _step_schema(),
        "filters": {"anyOf": [_STEP, {"type": "array", "items": _STEP}]},
    }


class _SpecForm(GenerateJsonSchema):
    def is_instance_schema(self, schema: core_schema.IsInstanceSchema) -> JsonSchemaValue:
        return dict(_UNRESOLVED) if schema["cls"] is Filter else {}


def _with_bare_steps(shape: Any) -> Any:
    """`shape` where one step of a pipeline may also stand without its list."""
    if isinstance(shape, list):
        return [_with_bare_steps(member) for member in cast(list[Any], shape)]
    if not isinstance(shape, dict):
        return shape
    found = {key: _with_bare_steps(value) for key, value in cast(dict[str, Any], shape).items()}
    if found == _UNRESOLVED:
        return _STEP
    if found.get("items") != _STEP:
        return found
    return {**_STEPS, **({"default": found["default"]} if "default" in found else {})}


def _step_schema() -> dict[str, Any]:
    """A step by its name, or one name with its options or with the value of its first one."""
    named = {name: _filter_options(kind) for name, kind in FILTERS.items()}
    bare = [name for name, options in named.items() if "required" not in options]
    declared = {
        "type": "object",
        "properties": {
            name: {"anyOf": [{"type": "string"}, options]} if options["properties"] else options
            for name, options in named.items()
        },
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
    }
    return {"anyOf": [{"enum": bare}, declared]}


def _filter_options(kind: type[Filter]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for option in fields(kind):  # pyright: ignore[reportArgumentType]
        properties[option.name] = pydantic.TypeAdapter(hints[option.name]).json_schema()
        if option.default is MISSING:
            required.append(option.name)
        else:
            properties[option.name]["default"] = option.default
    found = {"type": "object", "properties": properties, "additionalProperties": False}
    return found | ({"required": required} if required else {})
