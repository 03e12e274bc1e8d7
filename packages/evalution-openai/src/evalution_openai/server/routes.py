"""The routes of the server, and the OpenAPI document of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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


def report_health(served: ServedModel) -> Health:
    return {"status": "ok"}


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


_GETS: list[tuple[Operation, Callable[[ServedModel], Any]]] = [
    (Operation("/health", "Report that the server is up.", Health, is_open=True), report_health),
    (Operation("/v1/models", "The served model.", ModelList), list_models),
    (Operation("/tokenizer_info", "The tokenizer as data.", TokenizerInfo), tokenizer_info),
]
_METRICS = Operation("/metrics", "Figures for Prometheus.", "text/plain")


def make_routes(served: Callable[[], ServedModel], metrics: Metrics) -> list[Route]:
    """Make all routes; `served` returns the model, or raises an `ApiError` while there is none."""
    document = make_document([*(pair[0] for pair in (*_POSTS, *_GETS)), _METRICS])
    posts = {
        operation.path: JsonRoute(served, operation.body, answer) for operation, answer in _POSTS
    }
    posts |= {alias: posts[path] for alias, path in _ALIASES.items()}
    gets: dict[str, Callable[[], Response]] = {
        operation.path: partial(_describe, served, describe) for operation, describe in _GETS
    }
    gets["/openapi.json"] = partial(JSONResponse, document)
    gets["/metrics"] = lambda: Response(metrics.render(), media_type=_PROMETHEUS)
    return [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()),
        *(_make_get(path, answer) for path, answer in gets.items()),
    ]


def _describe(
    served: Callable[[], ServedModel], describe: Callable[[ServedModel], Any]
) -> Response:
    return JSONResponse(describe(served()))


def _make_get(path: str, answer: Callable[[], Response]) -> Route:
    async def endpoint(request: Request) -> Response:
        return answer()

    return Route(path, endpoint, methods=["GET"])
