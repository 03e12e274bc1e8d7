"""JSON Schema of an engine's or a suite's options, in the form in which a spec declares them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any, cast, get_type_hints

import pydantic
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from evalution.redaction import mask_text
from evalution.scoring.filters import FILTERS, Filter
from evalution.scoring.steps import StepKinds
from evalution.scoring.text_metrics import TEXT_METRICS, TextMetric
from evalution.suites.judge import Judge
from evalution.suites.suite import SuiteDeclaration, show_option
from evalution_core import BaseEngine, Model
from evalution_core.options import option_fields

if TYPE_CHECKING:
    from pydantic_core import core_schema


_STEP_KINDS: dict[type, StepKinds[Any]] = {Filter: FILTERS, TextMetric: TEXT_METRICS}
_JUDGE = "judge"
_REFERENCES = {**{kind: kinds.what for kind, kinds in _STEP_KINDS.items()}, Judge: _JUDGE}
_LOCAL = "#/$defs/"
_UNRESOLVED = "x-evalution"
"""Key in place of the reference while pydantic works, which resolves each one that it meets."""


def make_suite_schema(kind: type[SuiteDeclaration] | type[Judge]) -> dict[str, Any]:
    """An object with the type and default of each option; steps are as a spec writes them.

    An option of a class without a plain form may be anything: the suite itself judges it.
    References to `filter`, `filters`, `metric`, `metrics` and `judge` lead to the definitions of
    `make_step_definitions`.
    """
    hints = get_type_hints(kind, include_extras=True)
    options: dict[str, Any] = {}
    # Numbered, since a field of pydantic's may not have every name that an option has.
    for number, option in enumerate(option_fields(kind)):
        settings: dict[str, Any] = {"alias": option.name}
        if option.default is not MISSING:
            settings["default"] = show_option(option, option.default)
        elif option.default_factory is not MISSING:
            settings["default_factory"] = option.default_factory
        options[f"option_{number}"] = (hints[option.name], pydantic.Field(**settings))
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    model = pydantic.create_model(kind.__name__, __config__=config, **options)
    return _allow_bare_steps(model.model_json_schema(schema_generator=_SpecForm))


def make_engine_schema(kind: type[BaseEngine]) -> dict[str, Any]:
    """The schema of an engine's options, without the credentials of URLs among its defaults."""
    return _mask(kind.options_schema())


def _mask(shape: Any) -> Any:
    if isinstance(shape, dict):
        return {key: _mask(value) for key, value in cast(dict[str, Any], shape).items()}
    if isinstance(shape, list):
        return [_mask(member) for member in cast(list[Any], shape)]
    return mask_text(shape) if isinstance(shape, str) else shape


def make_step_definitions() -> dict[str, Any]:
    """The schemas of one filter and one metric, and of a list of either; and of a judge."""
    found: dict[str, Any] = {_JUDGE: {**make_suite_schema(Judge), "description": Judge.__doc__}}
    for kinds in _STEP_KINDS.values():
        one = _refer_to(kinds.what)
        found[kinds.what] = _make_step_schema(kinds)
        found[f"{kinds.what}s"] = {"anyOf": [one, {"type": "array", "items": one}]}
    return found


def _refer_to(name: str) -> dict[str, str]:
    return {"$ref": f"{_LOCAL}{name}"}


class _SpecForm(GenerateJsonSchema):
    def is_instance_schema(self, schema: core_schema.IsInstanceSchema) -> JsonSchemaValue:
        if schema["cls"] in (BaseEngine, Model):  # as a spec declares them
            return {"type": ["string", "object", "null"]}
        name = _REFERENCES.get(schema["cls"])
        return {} if name is None else {_UNRESOLVED: name}

    def json_or_python_schema(self, schema: core_schema.JsonOrPythonSchema) -> JsonSchemaValue:
        python = schema["python_schema"]
        if python["type"] == "is-instance":  # pydantic's InstanceOf
            return self.is_instance_schema(cast("core_schema.IsInstanceSchema", python))
        return super().json_or_python_schema(schema)


def _allow_bare_steps(shape: Any) -> Any:
    """`shape` where one step of a pipeline may also stand without its list."""
    if isinstance(shape, list):
        return [_allow_bare_steps(member) for member in cast(list[Any], shape)]
    if not isinstance(shape, dict):
        return shape
    found = {key: _allow_bare_steps(value) for key, value in cast(dict[str, Any], shape).items()}
    if _UNRESOLVED in found:
        return _refer_to(found[_UNRESOLVED])
    for kinds in _STEP_KINDS.values():
        if found.get("items") == _refer_to(kinds.what):
            kept = {key: found[key] for key in ("default", "description") if key in found}
            return _refer_to(f"{kinds.what}s") | kept
    return found


def _make_step_schema(kinds: StepKinds[Any]) -> dict[str, Any]:
    """A step by its name, or one name with its options or with the value of its first one."""
    named = {name: _make_options_schema(kind) for name, kind in kinds.kinds.items()}
    steps: dict[str, Any] = {}
    for name, shape in named.items():
        first = next(iter(shape["properties"].values()), None)
        steps[name] = shape
        if first is not None:
            direct = {key: first[key] for key in first if key not in ("default", "title")}
            steps[name] = {"description": shape["description"], "anyOf": [direct, shape]}
    declared = {
        "type": "object",
        "properties": steps,
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
    }
    bare = [name for name, shape in named.items() if "required" not in shape]
    return {"anyOf": [{"enum": bare}, declared]}


def _make_options_schema(kind: type[Any]) -> dict[str, Any]:
    shape: dict[str, Any] = _move_references(pydantic.TypeAdapter(kind).json_schema(), {})
    summary = summarize_docstring(kind.__doc__)
    return {**shape, "description": summary, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class NamedDeclaration:
    """One engine or suite: its name, its docstring, and the schema of its options.

    `source` is the package that may stand before a name without one.
    """

    name: str
    source: str
    what: str
    doc: str | None
    options: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Its place in the definitions: `engine.Reference`; a slash there would be a level."""
        return f"{self.what}.{self.name.replace('/', '.')}"

    @property
    def needs_options(self) -> bool:
        return bool(self.options.get("required"))

    @property
    def pattern(self) -> str:
        """Pattern of its name as people write it: case, `-` and `_` don't count."""
        package, _, name = self.name.rpartition("/")
        prefix = f"({_make_loose_pattern(package or self.source)}/)"
        return f"^{prefix}{'' if package else '?'}{_make_loose_pattern(name)}$"

    @property
    def definitions(self) -> dict[str, Any]:
        """Both forms of a declaration, the options, and what their types refer to."""
        own = self.options.get("$defs", {})
        moved = _move_references(
            self.options, {f"{_LOCAL}{name}": f"{_LOCAL}{self.key}.{name}" for name in own}
        )
        inner: dict[str, Any] = moved.pop("$defs", {})
        options = f"{self.key}.options"
        found = {self.key: self._make_forms(moved, options), options: moved}
        return found | {f"{self.key}.{name}": shape for name, shape in inner.items()}

    def _make_forms(self, options: Mapping[str, Any], reference: str) -> dict[str, Any]:
        names = {"type": True, "kind": True}
        params: dict[str, Any] = {"$ref": f"{_LOCAL}{reference}"}
        if not self.needs_options:
            params = {"anyOf": [params, {"type": "null"}]}
        params["description"] = f"Options of the {self.what}."
        beside = {**options, "properties": {"type": True, **options.get("properties", {})}}
        alone: dict[str, Any] = {
            "properties": {"kind": True, "params": True},
            "additionalProperties": False,
        }
        if self.needs_options:
            alone["required"] = ["params"]
        return {
            **({"description": summary} if (summary := summarize_docstring(self.doc)) else {}),
            "if": {"required": ["params"]},
            "then": {"properties": {**names, "params": params}, "additionalProperties": False},
            "else": {"if": {"required": ["kind"]}, "then": alone, "else": beside},
        }


_FOREIGN = {"description": "Name of an engine in that environment.", "type": "string"}
PYTHON_SCHEMA: dict[str, Any] = {
    "description": "Interpreter of another environment, in which the engine then runs: a path from "
    "the spec's folder. It stands beside the engine's name, as in `{type: VLLM, python: "
    ".venv-vllm/bin/python}`.",
    "type": "string",
    "minLength": 1,
}


def make_declaration_schema(what: str, declared: Sequence[NamedDeclaration]) -> dict[str, Any]:
    """A name alone, or a mapping with `type` or `kind`: each name with its own options.

    What is given as `package.module:Class` is not judged, nor an engine of another environment.
    """
    names = _make_name_schema(declared)
    beside = {"description": f"Name of the {what}; its options stand beside it.", **names}
    under = {"description": f"Name of the {what}; its options stand under `params`.", **names}
    one_name = {"oneOf": [{"required": ["type"]}, {"required": ["kind"]}]}
    options: dict[str, Any] = {
        "properties": {"type": beside, "kind": under},
        **one_name,
        "allOf": [
            {"if": _match_name(found), "then": {"$ref": f"{_LOCAL}{found.key}"}}
            for found in declared
        ],
    }
    if what == "engine":
        elsewhere = {
            "properties": {"python": PYTHON_SCHEMA, "type": _FOREIGN, "kind": _FOREIGN},
            **one_name,
        }
        options = {"if": {"required": ["python"]}, "then": elsewhere, "else": options}
    return {
        "description": f"One {what}: a name, `type` with options, or `kind` with `params`.",
        "type": ["string", "object"],
        "if": {"type": "string"},
        "then": _make_name_schema([found for found in declared if not found.needs_options]),
        "else": options,
    }


def read_docstring(kind: type[Any]) -> str | None:
    """The docstring that somebody wrote; not a dataclass's own, which shows every default."""
    doc = kind.__doc__
    return None if doc is None or doc.startswith(f"{kind.__name__}(") else doc


def summarize_docstring(doc: str | None) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((doc or "").strip().split("\n\n", 1)[0].split())


def _make_name_schema(declared: Sequence[NamedDeclaration]) -> dict[str, Any]:
    patterns = [{"pattern": found.pattern} for found in declared]
    # The list is what an editor offers, the patterns are what is right as well.
    offered = [{"enum": [found.name for found in declared]}] if declared else []
    return {"type": "string", "anyOf": [*offered, *patterns, {"pattern": ":"}]}


def _match_name(found: NamedDeclaration) -> dict[str, Any]:
    name = {"pattern": found.pattern}
    return {"anyOf": [{"required": [key], "properties": {key: name}} for key in ("type", "kind")]}


def _make_loose_pattern(name: str) -> str:
    kept = [char for char in name if char not in "-_"]
    return "[-_]*".join(
        f"[{char.upper()}{char.lower()}]" if char.isalpha() else re.escape(char) for char in kept
    )


def _move_references(shape: Any, places: Mapping[str, str]) -> Any:
    """A copy whose references lead to new places, without pydantic's titles of names."""
    if isinstance(shape, Mapping):
        members = cast("Mapping[str, Any]", shape)
        return {
            key: places.get(value, value) if key == "$ref" else _move_references(value, places)
            for key, value in members.items()
            if not (key == "title" and isinstance(value, str))
        }
    if isinstance(shape, list):
        return [_move_references(member, places) for member in cast("list[Any]", shape)]
    return shape
