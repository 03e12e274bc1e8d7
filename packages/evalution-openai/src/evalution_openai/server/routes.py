"""The routes of the server, and the OpenAPI document of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter
from starlette.routing import BaseRoute, Route
from typing_extensions import TypedDict

from evalution_openai.server.answers import ChatAnswer, CompletionAnswer
from evalution_openai.server.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    LoglikelihoodBody,
    RollingBody,
    TokenizeBody,
)
from evalution_openai.server.chat import chat
from evalution_openai.server.completions import complete
from evalution_openai.server.errors import ErrorAnswer
from evalution_openai.server.evaluation import (
    DetokenizeAnswer,
    LoglikelihoodAnswer,
    LoglikelihoodBatch,
    RollingAnswer,
    RollingBatch,
    TokenizeAnswer,
    TokenizerInfo,
    detokenize,
    loglikelihood,
    rolling,
    tokenize,
    tokenizer_info,
)
from evalution_openai.server.json_route import JsonRoute
from evalution_openai.server.serving import Metrics, ServedModel
from evalution_openai.server.streaming import send_bytes, send_json

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


_REF = "#/components/schemas/{model}"
_REFUSALS = {
    "400": "The request is wrong, or the engine can't serve it.",
    "401": "No API key, or another one than this server's.",
    "403": "Without a key, another host name than this machine's own.",
    "404": "Another model than the served one.",
    "408": "The body arrived too slowly.",
    "413": "The body is too long.",
    "429": "Too many requests wait; `Retry-After` says when to come back.",
    "500": "The engine failed.",
    "503": "The server is starting or ending.",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """A route in the document; `answer` is a type, or the media type of a text."""

    path: str
    summary: str
    answer: Any
    body: Any = None
    streams: bool = False
    is_open: bool = False
    """The route needs no key."""


def make_document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Make the OpenAPI 3.1 document."""
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
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {"200": {"description": "The answer.", "content": content}},
        "security": [] if operation.is_open else [{}, {"key": []}],
    }
    error = {"application/json": {"schema": schemas[ErrorAnswer, "serialization"]}}
    for status, reason in _REFUSALS.items():
        if operation.body is not None or status in ("400", "401", "403", "503"):
            described["responses"][status] = {"description": reason, "content": error}
    if operation.body is not None:
        schema = schemas[operation.body, "validation"]
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return described


_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Health(TypedDict):
    status: Literal["ok"]


class ModelEntry(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["evalution"]
    max_model_len: int | None
    dtype: str | None
    capabilities: list[str]


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelEntry]


_POSTS: list[tuple[Operation, Any]] = [
    (
        Operation(
            "/v1/completions",
            "Complete prompts; with echo and logprobs, score them.",
            CompletionAnswer,
            CompletionBody,
            streams=True,
        ),
        complete,
    ),
    (
        Operation(
            "/v1/chat/completions", "Answer a conversation.", ChatAnswer, ChatBody, streams=True
        ),
        chat,
    ),
    (
        Operation(
            "/v1/eval/loglikelihood",
            "Score continuations given their contexts.",
            LoglikelihoodAnswer | LoglikelihoodBatch,
            LoglikelihoodBody,
        ),
        loglikelihood,
    ),
    (
        Operation(
            "/v1/eval/loglikelihood/rolling",
            "Score each token of whole texts.",
            RollingAnswer | RollingBatch,
            RollingBody,
        ),
        rolling,
    ),
    (Operation("/tokenize", "Text to token ids.", TokenizeAnswer, TokenizeBody), tokenize),
    (Operation("/detokenize", "Token ids to text.", DetokenizeAnswer, DetokenizeBody), detokenize),
]
_ALIASES = {"/v1/eval/rolling": "/v1/eval/loglikelihood/rolling"}


def make_routes(served: Callable[[], ServedModel], metrics: Metrics) -> list[BaseRoute]:
    """Make all routes; `served` returns the model, or raises an `ApiError` while there is none."""

    async def health() -> Health:
        served()
        return {"status": "ok"}

    async def models() -> ModelList:
        return {"object": "list", "data": [_describe_model(served())]}

    async def info() -> TokenizerInfo:
        return await tokenizer_info(served())

    gets: list[tuple[Operation, Callable[[], Awaitable[Any]]]] = [
        (Operation("/health", "Report that the server is up.", Health, is_open=True), health),
        (Operation("/v1/models", "The served model.", ModelList), models),
        (Operation("/tokenizer_info", "The tokenizer as data.", TokenizerInfo), info),
    ]
    page = Operation("/metrics", "Figures for Prometheus.", "text/plain")
    schema = make_document([*(pair[0] for pair in (*_POSTS, *gets)), page])

    async def openapi() -> dict[str, Any]:
        return schema

    async def show_metrics(scope: Scope, receive: Receive, send: Send) -> None:
        await send_bytes(send, 200, metrics.render(), _PROMETHEUS)

    endpoints = {
        operation.path: JsonRoute(served, operation.body, answer) for operation, answer in _POSTS
    }
    endpoints |= {alias: endpoints[path] for alias, path in _ALIASES.items()}
    return [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()),
        *(Route(operation.path, _GetRoute(answer), methods=["GET"]) for operation, answer in gets),
        Route("/openapi.json", _GetRoute(openapi), methods=["GET"]),
        Route("/metrics", _RawRoute(show_metrics), methods=["GET"]),
    ]


class _GetRoute:
    """A route without a body; a class, as Starlette calls functions with another interface."""

    def __init__(self, answer: Callable[[], Awaitable[Any]]):
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, await self._answer())


class _RawRoute:
    def __init__(self, answer: Callable[[Scope, Receive, Send], Awaitable[None]]):
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope, receive, send)


def _describe_model(served: ServedModel) -> ModelEntry:
    execution = served.session.describe_execution() or {}
    dtype = execution.get("dtype")
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "evalution",
        "max_model_len": served.max_model_len,
        "dtype": dtype if isinstance(dtype, str) else None,
        "capabilities": sorted(served.capabilities),
    }
