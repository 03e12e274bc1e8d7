"""The ASGI application: routes, lifespan, keys, log, and errors as answers."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Router

from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    ConfigurationError,
    EvalutionError,
    Model,
    scrub,
)
from evalution_openai.server.endpoint import ClientGoneError, send_json
from evalution_openai.server.metrics import Metrics
from evalution_openai.server.problems import Problem, problem_of, unavailable, unexpected
from evalution_openai.server.routes import routes
from evalution_openai.server.served import Served
from evalution_openai.server.settings import ServerSettings

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

_log = logging.getLogger("evalution_openai.server")
_OPEN = {"/health"}
_GONE = 499
"""Status in log and metrics of a request whose client went away, as nginx has it."""


def build_app(
    session: BaseInferenceSession | None,
    engine: BaseEngine | None,
    model: Model | None,
    settings: ServerSettings,
) -> Application:
    """Raises `ConfigurationError` unless there is either a session or an engine."""
    if (session is None) == (engine is None):
        raise ConfigurationError("a server needs a session, or an engine and a model; not both")
    if engine is not None and model is None:
        path = engine.default_model()
        if path is None:
            raise ConfigurationError(
                f"engine {type(engine).__name__} needs to be told which model to serve"
            )
        model = Model(path=path)
    return Application(session, engine, model, settings)


class Application:
    """An ASGI application; `served` is there while a session is."""

    def __init__(
        self,
        session: BaseInferenceSession | None,
        engine: BaseEngine | None,
        model: Model | None,
        settings: ServerSettings,
    ):
        self._engine = engine
        self._model = model
        self._settings = settings
        self.metrics = Metrics()
        self._served: Served | None = None
        if session is not None:
            self._served = self._serving(session)
        table: list[BaseRoute] = routes(self.served, self.metrics)
        self._router = Router(table, redirect_slashes=False, lifespan=self._lifespan)
        self._paths = {getattr(route, "path", "") for route in table}

    def served(self) -> Served:
        """Raises a `Problem` (503) before the session is there and after it is gone."""
        if self._served is None:
            raise unavailable("the server has no model yet, or none any more")
        return self._served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await self._router(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncGenerator[None]:
        built: BaseInferenceSession | None = None
        if self._served is None and self._engine is not None and self._model is not None:
            built = await asyncio.to_thread(self._engine.build, self._model)
            self._served = self._serving(built)
        try:
            yield
        finally:
            if self._served is not None:
                self._served.close()
            if built is not None:
                self._served = None
                await asyncio.to_thread(built.close)

    def _serving(self, session: BaseInferenceSession) -> Served:
        name = self._settings.model_name
        if name is None:
            name = self._model.name if self._model else type(session).__name__
        declared = self._engine.capabilities if self._engine else None
        return Served(session, name, declared, self._settings, self.metrics)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        problem: Problem | None = None
        scope["app"] = self  # has the router raise what it finds nothing for
        try:
            self._check_key(scope)
            await self._router(scope, receive, sending)
        except ClientGoneError:
            self.metrics.aborted.inc()
            status = _GONE
        except HTTPException as error:
            problem = _unknown(error, scope)
        except Problem as error:
            problem = error
        except EvalutionError as error:
            problem = problem_of(error)
            if problem.status >= 500:
                _log.error("%s: %s", type(error).__name__, scrub(str(error)))
        except Exception:  # noqa: BLE001 - whatever it is, the client learns of it
            _log.exception("%s failed", scope["path"])
            problem = unexpected()
        if problem is not None and not status:
            await send_json(sending, problem.status, problem.answer, problem.headers)
        self._note(scope, status, time.perf_counter() - began)

    def _check_key(self, scope: Scope) -> None:
        key = self._settings.api_key
        if key is None or scope["path"] in _OPEN:
            return
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization":
                kind, _, token = value.partition(b" ")
                given = token.strip() if kind.lower() == b"bearer" else given
            elif name == b"x-api-key":
                given = value
        if not hmac.compare_digest(given, key.encode()):
            raise Problem(
                401,
                "this server wants its API key: Authorization: Bearer KEY",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        path = scope["path"]
        self.metrics.answered(path if path in self._paths else "other", status, seconds)
        if self._settings.log_requests:
            _log.info(
                "%s %s %d %.1f ms%s", scope["method"], ascii(path)[1:-1], status, seconds * 1000,
                _body_note(scope),
            )  # fmt: skip


def _body_note(scope: Scope) -> str:
    body = scope.get("evalution.body")
    return "" if body is None else f" {scrub(ascii(body)[2:-1])}"


def _unknown(error: HTTPException, scope: Scope) -> Problem:
    if error.status_code == 405:
        message, code = f"{scope['path']} doesn't take {scope['method']}", "method_not_allowed"
    else:
        message, code = f"no route {scope['path']}; /openapi.json lists them", "not_found"
    return Problem(error.status_code, message, code=code, headers=error.headers)
