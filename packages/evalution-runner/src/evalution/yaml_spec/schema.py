"""The JSON Schema of a spec, for editors: what is installed decides what may stand in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from pydantic import TypeAdapter

from evalution.doctor.child import Facts, answer_parent, ask_child
from evalution.error_boundary import wrap_errors
from evalution.redaction import mask_text
from evalution.suites.discovery import find_suites
from evalution.yaml_spec.option_schema import (
    NamedDeclaration,
    make_declaration_schema,
    make_engine_schema,
    make_step_definitions,
    make_suite_schema,
    read_docstring,
)
from evalution_core import ConfigurationError, EvalutionError, Model
from evalution_core.discovery import ENGINES
from evalution_core.plugins import PluginEntry, PluginRegistry

PATIENCE = 20
"""Seconds that a plugin of another package has to be imported and to describe its options."""
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
    "record_tokens": {
        "description": "Keep each token of an answer with its log-probability in its sample.",
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

    It imports every adapter of this project, and no runtime. Each plugin of another package is
    imported in a child process, which has `PATIENCE` seconds. What an option's value may be beyond
    its type (a range, a column of the rows), `evalution validate` knows. Secret options show no
    default.
    """
    engines, broken_engines = _list_plugins("engine")
    suites, broken_suites = _list_plugins("test")
    definitions: dict[str, Any] = {
        "engine": make_declaration_schema("engine", engines),
        "test": make_declaration_schema("test", suites),
        "model": _make_model_schema(),
        **make_step_definitions(),
    }
    for name, reference in (("engine", _ENGINE), ("model", _MODEL)):
        definitions["judge"]["properties"][name].update(reference)
    for declared in (*engines, *suites):
        definitions.update(declared.definitions)
    schema = {
        "$schema": DIALECT,
        "title": "Evalution spec",
        "description": (
            f"A run of evalution {version('evalution-runner')}: an engine, a model and tests."
        ),
        "type": "object",
        "properties": _SECTIONS,
        "required": ["engine", "tests"],
        "additionalProperties": False,
        **_OF_MODEL,
        "$defs": definitions,
    }
    return SpecSchema(schema, [*broken_engines, *broken_suites])


def _list_plugins(what: str) -> tuple[list[NamedDeclaration], list[str]]:
    """Return the declarations of all plugins, and a line for each that is left out."""
    registry = _find_registry(what)
    ours = {None, *registry.own.values()}
    found: list[NamedDeclaration] = []
    complaints: list[str] = []
    for name, entry in registry.names().items():
        declare = _declare_plugin if entry.distribution in ours else _declare_in_child
        try:
            found.append(declare(what, name, entry))
        except EvalutionError as error:
            complaints.append(str(error))
    return found, complaints


def _find_registry(what: str) -> PluginRegistry[Any]:
    return ENGINES if what == "engine" else find_suites()


def _declare_plugin(what: str, name: str, entry: PluginEntry[Any]) -> NamedDeclaration:
    kind = entry.load()
    make_schema = make_engine_schema if what == "engine" else make_suite_schema
    with wrap_errors(f"{what} {name!r}: the schema of its options", ConfigurationError):
        declared = NamedDeclaration(
            name, entry.source, what, read_docstring(kind), make_schema(kind)
        )
        json.dumps(declared.definitions)  # a package may say anything of its options
    return declared


def _declare_in_child(what: str, name: str, entry: PluginEntry[Any]) -> NamedDeclaration:
    question = {"what": what, "name": name}
    found = ask_child("evalution.yaml_spec.schema", entry, question, PATIENCE)
    if "declaration" in found:
        return NamedDeclaration(**found["declaration"])
    source = "" if found["stage"] is None else f"{entry.qualified}: "
    raise ConfigurationError(f"{source}{found['error']}")


def _answer_question(question: Mapping[str, Any]) -> Iterator[Facts]:
    """Declare the plugin of the question."""
    yield {"stage": "its import"}
    what = question["what"]
    own_name, value, distribution, version = question["entry"]
    entry = PluginEntry(own_name, value, distribution, version, _find_registry(what))
    try:
        entry.load()
        yield {"stage": "the schema of its options"}
        yield {"declaration": asdict(_declare_plugin(what, question["name"], entry))}
    except EvalutionError as error:
        yield {"error": mask_text(str(error))}
    yield {"stage": None}


def _make_model_schema() -> dict[str, Any]:
    fields = TypeAdapter(Model).json_schema()
    return {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {**fields, "additionalProperties": False},
            {"type": "null"},
        ]
    }


if __name__ == "__main__":
    answer_parent(_answer_question)
