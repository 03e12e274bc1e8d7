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
from evalution_openai.server.connections import peer_of
from evalution_openai.server.errors import (
    ClientGoneError,
    Problem,
    problem_of,
    unavailable,
    unexpected,
)
from evalution_openai.server.routes import routes
from evalution_openai.server.serving import Metrics, Served
from evalution_openai.server.settings import ServerSettings, host_of, is_loopback
from evalution_openai.server.streaming import Outgoing, send_json

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

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
        self.metrics.watch(
            inside=lambda: self._served.inside if self._served else 0,
            body_bytes=lambda: self._served.bodies.total if self._served else 0,
        )
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
        outgoing = Outgoing(send, peer_of(scope))
        scope["app"] = self  # has the router raise what it finds nothing for
        try:
            await self._routed(scope, receive, outgoing)
        except ClientGoneError:
            self.metrics.aborted.inc()
            outgoing.status = _GONE
        except asyncio.CancelledError:
            # The server ends, and the time for what still runs is over.
            if not outgoing.status:
                await _send_problem(outgoing, unavailable("the server ends"))
            raise
        except Problem as problem:
            if not outgoing.status:
                await _send_problem(outgoing, problem)
        finally:
            self._note(scope, outgoing.status, time.perf_counter() - began)

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises whatever goes wrong as a `Problem`, but for a client that is gone."""
        try:
            self._check_host(scope)
            self._check_key(scope)
            await self._router(scope, receive, send)
        except (Problem, ClientGoneError):
            raise
        except HTTPException as error:
            raise _unknown(error, scope) from None
        except EvalutionError as error:
            problem = problem_of(error)
            if problem.status >= 500:
                _log.error("%s: %s", type(error).__name__, scrub(str(error)))
            raise problem from error
        except Exception as error:
            _log.exception("%s failed", scope["path"])
            raise unexpected() from error

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

    def _check_host(self, scope: Scope) -> None:
        """A web page may have its own name lead to this machine, and so read the answers."""
        settings, server = self._settings, scope.get("server")
        if settings.api_key or settings.any_host or not server or not is_loopback(server[0]):
            return
        asked = next((value for name, value in scope["headers"] if name == b"host"), b"localhost")
        if not is_loopback(host_of(asked.decode("latin-1"))):
            raise Problem(
                403,
                "without a key, this server answers to localhost alone: ask for that name, or "
                "start it with --api-key-env NAME",
                code="host_not_allowed",
            )

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        path = scope["path"]
        self.metrics.answered(path if path in self._paths else "other", status, seconds)
        if self._settings.log_requests:
            shown, note = ascii(path)[1:-1], _body_note(scope)
            _log.info("%s %s %d %.1f ms%s", scope["method"], shown, status, seconds * 1000, note)


async def _send_problem(send: Send, problem: Problem) -> None:
    await send_json(send, problem.status, problem.answer, problem.headers)


def _body_note(scope: Scope) -> str:
    body = scope.get("evalution.body")
    return "" if body is None else f" {scrub(ascii(body)[2:-1])}"


def _unknown(error: HTTPException, scope: Scope) -> Problem:
    if error.status_code == 405:
        message, code = f"{scope['path']} doesn't take {scope['method']}", "method_not_allowed"
    else:
        message, code = f"no route {scope['path']}; /openapi.json lists them", "not_found"
    return Problem(error.status_code, message, code=code, headers=error.headers)
