"""The routes of the server, and the OpenAPI document of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import version
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from typing_extensions import TypedDict

from evalution_openai.server.answers import ChatAnswer, ChatChunk, CompletionAnswer
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
    "403": "Without a key, another host name than this machine's own, or a page of another origin.",
    "404": "Another model than the served one.",
    "408": "The body arrived too slowly.",
    "413": "The body is too long.",
    "415": "The body isn't JSON.",
    "429": "Too many requests wait; `Retry-After` says when to come back.",
    "500": "The engine failed.",
    "503": "The server is starting or ending.",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """A route: a POST with a `body`, or a GET; `answer` is the type of its answer, None a page.

    `respond` makes the answer of a POST from the model and the body, that of a GET from the model
    and the parameters of the path. `example` is a body; with a `chunk`, the type of a stream's
    events, a second one asks for a stream. `links` are the operations that an answer leads to, as
    OpenAPI describes them.
    """

    path: str
    summary: str
    answer: Any
    respond: Callable[..., Any]
    body: Any = None
    example: Mapping[str, Any] = field(default_factory=dict[str, Any])
    chunk: Any = None
    links: Mapping[str, Any] = field(default_factory=dict[str, Any])
    needs_key: bool = True


@cache
def make_document() -> dict[str, Any]:
    """Make the OpenAPI 3.1 document."""
    bodies = [operation.body for operation in OPERATIONS if operation.body is not None]
    answers = [kind for one in OPERATIONS for kind in (one.answer, one.chunk) if kind is not None]
    adapters: list[tuple[Any, Any, TypeAdapter[Any]]] = [
        *((kind, "validation", TypeAdapter(kind)) for kind in bodies),
        *((kind, "serialization", TypeAdapter(kind)) for kind in (*answers, ErrorAnswer)),
    ]
    schemas, shared = TypeAdapter.json_schemas(adapters, ref_template=_REF)
    paths = {
        one.path: {"post" if one.body else "get": _describe_operation(one, schemas)}
        for one in OPERATIONS
    }
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
    failure = schemas[ErrorAnswer, "serialization"]
    if operation.chunk is not None:
        chunk = schemas[operation.chunk, "serialization"]
        content["text/event-stream"] = {"schema": _describe_event(chunk, failure)}
    responses: dict[str, Any] = {
        "200": {
            "description": "The answer.",
            "headers": _ID_HEADER,
            "content": content,
            "links": operation.links,
        }
    }
    names = re.findall(r"{(\w+)}", operation.path)
    common = ("400", "401", "403", "503", *("404" for _ in names))
    for status, reason in _REFUSALS.items():
        if operation.body is not None or status in common:
            responses[status] = {"description": reason, "content": _json_content(failure)}
    described: dict[str, Any] = {
        "operationId": operation.respond.__name__,
        "summary": operation.summary,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ],
        "responses": responses,
        "security": [{}, {"key": []}] if operation.needs_key else [],
    }
    if operation.body is not None:
        examples = {"whole": {"value": operation.example}}
        if operation.chunk is not None:
            examples["streamed"] = {"value": {**operation.example, "stream": True}}
        content = _json_content(schemas[operation.body, "validation"])
        content["application/json"]["examples"] = examples
        described["requestBody"] = {"required": True, "content": content}
    return described


def _describe_event(chunk: Any, failure: Any) -> dict[str, Any]:
    """Describe one event of a stream: a chunk, a failure, or the end."""
    content = {"contentMediaType": "application/json", "contentSchema": {"anyOf": [chunk, failure]}}
    data = {"anyOf": [{"const": "[DONE]"}, {"type": "string", **content}]}
    return {"type": "object", "required": ["data"], "properties": {"data": data}}


def _json_content(schema: Any) -> dict[str, dict[str, Any]]:
    return {"application/json": {"schema": schema}}


_ID_HEADER = {
    "x-request-id": {
        "description": "The request's own `x-request-id`, or a new one; the log has it too.",
        "schema": {"type": "string"},
    }
}
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
    return {"object": "list", "data": [retrieve_model(served, served.name)]}


def retrieve_model(served: ServedModel, model: str) -> ModelEntry:
    """Describe the served model; raise an `ApiError` (404) for another name."""
    served.check_name(model)
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "evalution",
        "max_model_len": served.max_model_len,
        "dtype": served.dtype,
        "capabilities": sorted(served.capabilities),
    }


_TEXT = "Tom has 3"
_TOKENS = "$response.body#/tokens"


def _link(respond: Callable[..., Any], body: Mapping[str, Any]) -> dict[str, Any]:
    return {"operationId": respond.__name__, "requestBody": body}


OPERATIONS = [
    Operation(
        "/v1/completions",
        "Complete prompts; with echo and logprobs, score them.",
        CompletionAnswer,
        complete,
        CompletionBody,
        {"prompt": _TEXT, "max_tokens": 8},
        CompletionAnswer,
    ),
    Operation(
        "/v1/chat/completions",
        "Answer a conversation.",
        ChatAnswer,
        chat,
        ChatBody,
        {"messages": [{"role": "user", "content": "What is 3 + 4?"}], "max_tokens": 8},
        ChatChunk,
    ),
    Operation(
        "/v1/eval/loglikelihood",
        "Score continuations given their contexts.",
        LoglikelihoodAnswer | LoglikelihoodBatch,
        loglikelihood,
        LoglikelihoodBody,
        {"context": _TEXT, "continuation": " apples"},
    ),
    Operation(
        "/v1/eval/loglikelihood/rolling",
        "Score each token of whole texts.",
        RollingAnswer | RollingBatch,
        rolling,
        RollingBody,
        {"text": _TEXT},
    ),
    Operation(
        "/tokenize",
        "Text to token ids.",
        TokenizeAnswer,
        tokenize,
        TokenizeBody,
        {"prompt": _TEXT},
        links={
            "text": _link(detokenize, {"tokens": _TOKENS}),
            "completion": _link(complete, {"prompt": _TOKENS, "max_tokens": 4}),
            "score": _link(rolling, {"input_ids": _TOKENS}),
        },
    ),
    Operation(
        "/detokenize",
        "Token ids to text.",
        DetokenizeAnswer,
        detokenize,
        DetokenizeBody,
        {"tokens": [72, 105]},
        links={"ids": _link(tokenize, {"prompt": "$response.body#/prompt"})},
    ),
    Operation("/tokenizer_info", "The tokenizer as data.", TokenizerInfo, tokenizer_info),
    Operation(
        "/v1/models",
        "The served model, in a list.",
        ModelList,
        list_models,
        links={
            "model": {
                "operationId": retrieve_model.__name__,
                "parameters": {"model": "$response.body#/data/0/id"},
            }
        },
    ),
    Operation("/v1/models/{model}", "The served model.", ModelEntry, retrieve_model),
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


def _respond(served: Callable[[], ServedModel], operation: Operation, **parameters: str) -> Any:
    return operation.respond(served(), **parameters)


def _make_get(path: str, make: Callable[..., Any]) -> Route:
    async def endpoint(request: Request) -> Response:
        answer = make(**request.path_params)
        if isawaitable(answer):
            answer = await answer
        if isinstance(answer, bytes):
            return Response(answer, media_type=_PROMETHEUS)
        return JSONResponse(answer)

    # A model's name may contain slashes.
    return Route(path.replace("}", ":path}"), endpoint, methods=["GET"])
