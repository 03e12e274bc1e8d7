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
    make_declaration_schema,
    make_engine_schema,
    make_step_definitions,
    make_suite_schema,
    read_docstring,
)
from evalution_core import ConfigurationError, EvalutionError, Model
from evalution_core.discovery import ENGINES, EngineEntry

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ENGINE, _MODEL, _TEST = ({"$ref": f"#/$defs/{name}"} for name in ("engine", "model", "test"))
_SECTIONS: dict[str, Any] = {
    "engine": {"description": "Engine that answers, with its options.", **_ENGINE},
    "model": {
        "description": "Model to evaluate: a path or a Hub id, or a mapping of its fields; with a "
        "`backend`, the name by which that knows it."
    },
    "tests": {
        "description": "Suites to run, in this order.",
        "type": "array",
        "items": _TEST,
        "minItems": 1,
    },
    "backend": {
        "description": "Training backend that prepares the model to which the engine attaches, "
        "such as `{kind: local, params: {dtype: float32}}`; needs evalution-training.",
        "type": ["object", "string", "null"],
        "anyOf": [{"required": ["kind"]}, {"required": ["type"]}, {"type": ["string", "null"]}],
        "properties": {
            "kind": {
                "description": "Name of the backend; its options stand under `params`.",
                "type": "string",
            },
            "type": {
                "description": "Name of the backend; its options stand beside it.",
                "type": "string",
            },
        },
    },
    "against": {
        "description": "Engine that `evalution parity` compares with; a run has none.",
        "type": ["object", "null"],
        "properties": {
            "engine": {"description": "Engine that is checked, with its options.", **_ENGINE},
            "model": {"description": "Its model, where that is another.", **_MODEL},
        },
        "required": ["engine"],
        "additionalProperties": False,
    },
    "isolate": {
        "description": "Run the session in a supervised process of its own.",
        "type": "boolean",
        "default": False,
    },
    "on_error": {
        "description": "`record` counts a failed request and goes on, `raise` ends the run.",
        "enum": ["record", "raise"],
        "default": "record",
    },
    "max_failures": {
        "description": "Failed requests after which the run ends; null sets no limit.",
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
    "then": {
        "required": ["model"],
        "properties": {
            "model": {"description": "Model that the backend loads.", "type": ["string", "object"]}
        },
    },
    "else": {"properties": {"model": {"description": "Model that the engine loads.", **_MODEL}}},
}
"""The backend of a package decides what its models are called by."""


def make_spec_schema() -> SpecSchema:
    """The schema of a spec (JSON Schema 2020-12) over all installed engines and suites.

    It imports every engine's adapter, and no runtime. What an option's value may be beyond its type
    (a range, a column of the rows), `evalution validate` knows. Secret options show no default.
    """
    complaints: list[str] = []
    engines, suites = _list_engines(complaints), _list_suites(complaints)
    definitions: dict[str, Any] = {
        "engine": make_declaration_schema("engine", engines),
        "test": make_declaration_schema("test", suites),
        "model": _make_model_schema(),
        **make_step_definitions(),
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


def _list_engines(complaints: list[str]) -> list[NamedDeclaration]:
    found: list[NamedDeclaration] = []
    for name, entry in ENGINES.names().items():
        with _note_errors(complaints):
            found.append(_declare_engine(name, entry))
    return found


def _declare_engine(name: str, entry: EngineEntry) -> NamedDeclaration:
    kind = entry.load()
    with wrap_errors(f"engine {name!r}: the schema of its options", ConfigurationError):
        options = make_engine_schema(kind)
    return NamedDeclaration(name, "engine", read_docstring(kind), options)


def _list_suites(complaints: list[str]) -> list[NamedDeclaration]:
    found: list[NamedDeclaration] = []
    for name in available_suites():
        with _note_errors(complaints):
            kind = load_suite(name)
            with wrap_errors(f"suite {name!r}: the schema of its options", ConfigurationError):
                options = make_suite_schema(kind)
            declared = NamedDeclaration(name, "test", read_docstring(kind), options)
            found.append(declared)
    return found


def _make_model_schema() -> dict[str, Any]:
    fields = TypeAdapter(Model).json_schema()
    return {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {**fields, "additionalProperties": False},
            {"type": "null"},
        ]
    }


@contextmanager
def _note_errors(complaints: list[str]) -> Generator[None]:
    """Make a line of a plugin's fault: it must not cost the others their place."""
    try:
        yield
    except EvalutionError as error:
        complaints.append(str(error))
