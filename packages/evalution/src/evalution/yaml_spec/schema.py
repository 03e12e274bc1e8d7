"""The JSON Schema of a spec, for editors: what is installed decides what may stand in it."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from pydantic import TypeAdapter

from evalution.error_boundary import wrap_errors
from evalution.suites.discovery import available_suites, load_suite
from evalution.yaml_spec.option_schema import (
    NamedDeclaration,
    any_declaration,
    engine_options_schema,
    filter_definitions,
    read_base_docstrings,
    read_docstring,
    suite_options_schema,
)
from evalution_core import (
    ConfigurationError,
    EngineEntry,
    EvalutionError,
    Model,
    available,
    normalized,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ENGINE, _MODEL, _TEST = ({"$ref": f"#/$defs/{name}"} for name in ("engine", "model", "test"))
_SECTIONS: dict[str, Any] = {
    "engine": _ENGINE,
    "model": {"description": "With a `backend`, what that takes; else the fields below."},
    "tests": {"type": "array", "items": _TEST, "minItems": 1},
    "backend": {
        "description": "What prepares the model that the engine attaches to, such as "
        "`{kind: local, params: {dtype: float32}}`; needs evalution-training.",
        "type": ["object", "string", "null"],
        "anyOf": [{"required": ["kind"]}, {"required": ["type"]}, {"type": ["string", "null"]}],
        "properties": {"kind": {"type": "string"}, "type": {"type": "string"}},
    },
    "against": {
        "description": "What `evalution parity` holds the engine to; the model is the same unless "
        "another is named.",
        "type": ["object", "null"],
        "properties": {"engine": _ENGINE, "model": _MODEL},
        "required": ["engine"],
        "additionalProperties": False,
    },
    "isolate": {
        "description": "Whether the session lives in a supervised process of its own.",
        "type": "boolean",
        "default": False,
    },
    "on_error": {
        "description": "What a failed request does: it is recorded, or it ends the run.",
        "enum": ["record", "raise"],
        "default": "record",
    },
    "max_failures": {
        "description": "The run ends when more requests than that have failed.",
        "type": ["integer", "null"],
        "minimum": 0,
    },
}


@dataclass(frozen=True, slots=True)
class SpecSchema:
    """A schema, and a line for each plugin that could not be put into it."""

    schema: Mapping[str, Any]
    complaints: Sequence[str]


_OF_MODEL: dict[str, Any] = {
    "if": {"required": ["backend"], "properties": {"backend": {"not": {"type": "null"}}}},
    "then": {"required": ["model"], "properties": {"model": {"type": ["string", "object"]}}},
    "else": {"properties": {"model": _MODEL}},
}
"""The backend of a package decides what its models are called by."""


def spec_schema() -> SpecSchema:
    """The schema of a spec (JSON Schema 2020-12) over all installed engines and suites.

    It imports every engine's adapter, and no runtime. What an option's value may be beyond its type
    (a range, a column of the rows), `evalution validate` knows. Secret options show no default.
    """
    complaints: list[str] = []
    engines, suites = _engines(complaints), _suites(complaints)
    definitions: dict[str, Any] = {
        "engine": any_declaration("engine", engines),
        "test": any_declaration("test", suites),
        "model": _model(),
        **filter_definitions(),
    }
    for declared in (*engines, *suites):
        definitions.update(declared.definitions)
    schema = {
        "$schema": DIALECT,
        "title": "Evalution spec",
        "description": f"A run of evalution {version('evalution')}: an engine, a model and tests.",
        "type": "object",
        "properties": _SECTIONS,
        "required": ["engine", "tests"],
        "additionalProperties": False,
        **_OF_MODEL,
        "$defs": definitions,
    }
    return SpecSchema(schema, complaints)


def _engines(complaints: list[str]) -> list[NamedDeclaration]:
    entries = available()
    names = [normalized(entry.name) for entry in entries]
    found: list[NamedDeclaration] = []
    for entry in entries:
        is_alone = names.count(normalized(entry.name)) == 1
        with _noting(complaints):
            found.append(_engine(entry.name if is_alone else f"{entry.source}/{entry.name}", entry))
    return found


def _engine(name: str, entry: EngineEntry) -> NamedDeclaration:
    kind = entry.load()
    with wrap_errors(f"engine {name!r}: the schema of its options", ConfigurationError):
        options = engine_options_schema(kind)
    return NamedDeclaration(
        name, "engine", read_docstring(kind), options, read_base_docstrings(kind)
    )


def _suites(complaints: list[str]) -> list[NamedDeclaration]:
    found: list[NamedDeclaration] = []
    for name in available_suites():
        with _noting(complaints):
            kind = load_suite(name)
            with wrap_errors(f"suite {name!r}: the schema of its options", ConfigurationError):
                options = suite_options_schema(kind)
            declared = NamedDeclaration(
                name, "test", read_docstring(kind), options, read_base_docstrings(kind)
            )
            found.append(declared)
    return found


def _model() -> dict[str, Any]:
    fields = TypeAdapter(Model).json_schema()
    return {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {**fields, "additionalProperties": False},
            {"type": "null"},
        ]
    }


@contextmanager
def _noting(complaints: list[str]) -> Generator[None]:
    """Make a line of a plugin's fault: it must not cost the others their place."""
    try:
        yield
    except EvalutionError as error:
        complaints.append(str(error))
