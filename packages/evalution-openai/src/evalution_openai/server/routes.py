"""The routes of the server, and the OpenAPI document of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
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
from evalution_openai.server.completions import chat, complete
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
from evalution_openai.server.serving import ServedModel

if TYPE_CHECKING:
    from starlette.requests import Request

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
    """A route: a POST with a `body`, or a GET; `answer` is the type of its answer, None a page.

    `respond` makes the answer of a POST from the model and the body, that of a GET from the model.
    """

    path: str
    summary: str
    answer: Any
    respond: Callable[..., Any]
    body: Any = None
    streams: bool = False
    needs_key: bool = True


@cache
def make_document() -> dict[str, Any]:
    """Make the OpenAPI 3.1 document."""
    bodies = [operation.body for operation in OPERATIONS if operation.body is not None]
    answers = [operation.answer for operation in OPERATIONS if operation.answer is not None]
    adapters: list[tuple[Any, Any, TypeAdapter[Any]]] = [
        *((kind, "validation", TypeAdapter(kind)) for kind in bodies),
        *((kind, "serialization", TypeAdapter(kind)) for kind in (*answers, ErrorAnswer)),
    ]
    schemas, shared = TypeAdapter.json_schemas(adapters, ref_template=_REF)
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        method = "get" if operation.body is None else "post"
        paths[operation.path] = {method: _describe_operation(operation, schemas)}
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


def _describe_operation(operation: Operation, schemas: Any) -> dict[str, Any]:
    if operation.answer is None:
        content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    else:
        content = _json_content(schemas[operation.answer, "serialization"])
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": content}}
    error = _json_content(schemas[ErrorAnswer, "serialization"])
    for status, reason in _REFUSALS.items():
        if operation.body is not None or status in ("400", "401", "403", "503"):
            responses[status] = {"description": reason, "content": error}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": responses,
        "security": [{}, {"key": []}] if operation.needs_key else [],
    }
    if operation.body is not None:
        content = _json_content(schemas[operation.body, "validation"])
        described["requestBody"] = {"required": True, "content": content}
    return described


def _json_content(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


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


def report_health(served: ServedModel) -> Health:
    return {"status": "ok"}


def render_metrics(served: ServedModel) -> bytes:
    return served.metrics.render()


def list_models(served: ServedModel) -> ModelList:
    execution = served.session.describe_execution() or {}
    dtype = execution.get("dtype")
    entry: ModelEntry = {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "evalution",
        "max_model_len": served.max_model_len,
        "dtype": dtype if isinstance(dtype, str) else None,
        "capabilities": sorted(served.capabilities),
    }
    return {"object": "list", "data": [entry]}


OPERATIONS = [
    Operation(
        "/v1/completions",
        "Complete prompts; with echo and logprobs, score them.",
        CompletionAnswer,
        complete,
        CompletionBody,
        streams=True,
    ),
    Operation(
        "/v1/chat/completions", "Answer a conversation.", ChatAnswer, chat, ChatBody, streams=True
    ),
    Operation(
        "/v1/eval/loglikelihood",
        "Score continuations given their contexts.",
        LoglikelihoodAnswer | LoglikelihoodBatch,
        loglikelihood,
        LoglikelihoodBody,
    ),
    Operation(
        "/v1/eval/loglikelihood/rolling",
        "Score each token of whole texts.",
        RollingAnswer | RollingBatch,
        rolling,
        RollingBody,
    ),
    Operation("/tokenize", "Text to token ids.", TokenizeAnswer, tokenize, TokenizeBody),
    Operation("/detokenize", "Token ids to text.", DetokenizeAnswer, detokenize, DetokenizeBody),
    Operation("/tokenizer_info", "The tokenizer as data.", TokenizerInfo, tokenizer_info),
    Operation("/v1/models", "The served model.", ModelList, list_models),
    Operation("/metrics", "Figures for Prometheus.", None, render_metrics),
    Operation("/health", "Report that the server is up.", Health, report_health, needs_key=False),
]
_ALIASES = {"/v1/eval/loglikelihood/rolling": "/v1/eval/rolling"}


def make_routes(served: Callable[[], ServedModel]) -> list[Route]:
    """Make all routes; `served` returns the model, or raises an `ApiError` while there is none."""
    document = make_document()
    routes = [_make_get("/openapi.json", lambda: document)]
    for operation in OPERATIONS:
        if operation.body is None:
            routes.append(_make_get(operation.path, partial(_respond, served, operation)))
            continue
        endpoint = JsonRoute(served, operation.body, operation.respond)
        paths = {operation.path, _ALIASES.get(operation.path, operation.path)}
        routes += [Route(path, endpoint, methods=["POST"]) for path in paths]
    return routes


def _respond(served: Callable[[], ServedModel], operation: Operation) -> Any:
    return operation.respond(served())


def _make_get(path: str, make: Callable[[], Any]) -> Route:
    async def endpoint(request: Request) -> Response:
        answer = make()
        if isinstance(answer, bytes):
            return Response(answer, media_type=_PROMETHEUS)
        return JSONResponse(answer)

    return Route(path, endpoint, methods=["GET"])
