"""The OpenAPI document, from the types of the bodies and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from pydantic import TypeAdapter

from evalution_openai.server.problems import ErrorAnswer

_REF = "#/components/schemas/{model}"
_REFUSALS = {
    "400": "The request is wrong, or the engine can't serve it.",
    "401": "No API key, or another one than this server's.",
    "403": "Without a key, another host name than this machine's own.",
    "404": "Another model than the served one.",
    "408": "The body came too slowly.",
    "413": "The body is too long.",
    "429": "Too many requests wait; `Retry-After` says when to come back.",
    "500": "The engine failed.",
    "503": "The server is starting or ending.",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """A route as the document tells it; `answer` is a type, or the media type of a text."""

    path: str
    summary: str
    answer: Any
    body: Any = None
    streams: bool = False
    is_open: bool = False
    """Whether it needs no key."""


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The whole document, version 3.1."""
    kinds = [operation.body for operation in operations if operation.body is not None]
    answers = [operation.answer for operation in operations if not _is_text(operation)]
    adapters: list[tuple[Any, Any, TypeAdapter[Any]]] = [
        *((kind, "validation", TypeAdapter(kind)) for kind in kinds),
        *((kind, "serialization", TypeAdapter(kind)) for kind in (*answers, ErrorAnswer)),
    ]
    schemas, shared = TypeAdapter.json_schemas(adapters, ref_template=_REF)
    paths: dict[str, Any] = {}
    for operation in operations:
        method = "get" if operation.body is None else "post"
        paths[operation.path] = {method: _operation(operation, schemas)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Evalution",
            "version": version("evalution-openai"),
            "description": "A language model behind OpenAI's routes, and routes that score.",
        },
        "paths": paths,
        "components": {
            "schemas": shared.get("$defs", {}),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _is_text(operation: Operation) -> bool:
    return isinstance(operation.answer, str)


def _operation(operation: Operation, schemas: Any) -> dict[str, Any]:
    if _is_text(operation):
        content: dict[str, Any] = {operation.answer: {"schema": {"type": "string"}}}
    else:
        schema = schemas[operation.answer, "serialization"]
        content = {"application/json": {"schema": schema}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    told: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {"200": {"description": "The answer.", "content": content}},
        "security": [] if operation.is_open else [{}, {"key": []}],
    }
    error = {"application/json": {"schema": schemas[ErrorAnswer, "serialization"]}}
    for status, reason in _REFUSALS.items():
        if operation.body is not None or status in ("400", "401", "403", "503"):
            told["responses"][status] = {"description": reason, "content": error}
    if operation.body is not None:
        schema = schemas[operation.body, "validation"]
        told["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return told
