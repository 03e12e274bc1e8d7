"""The server and its ASGI application: lifespan, keys, log, and errors as answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Router

from evalution_core import BaseEngine, BaseInferenceSession, Model
from evalution_core.redaction import find_secrets, redact_text
from evalution_enginekit.fair_queue import current_caller
from evalution_openai.server.access import check_access
from evalution_openai.server.connections import format_url, get_client, listening
from evalution_openai.server.errors import ApiError, make_unavailable, to_api_error
from evalution_openai.server.routes import make_routes
from evalution_openai.server.serving import Metrics, ServedModel
from evalution_openai.server.settings import ServerSettings
from evalution_openai.server.streaming import ResponseSender, send_json

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_log = logging.getLogger("evalution_openai.server")
_CLIENT_CLOSED = 499
"""Status in log and metrics of a request whose client disconnected, as in nginx."""


class OpenAICompatibleServer:
    """A server of one model, and the ASGI application that it runs.

    Attributes:
        host: the address on which it listens.
        port: its port; 0 until it listens on any free one.
    """

    def __init__(
        self,
        session: BaseInferenceSession | None,
        engine: BaseEngine | None,
        model: Model | None,
        settings: ServerSettings,
        host: str = "127.0.0.1",
        port: int = 0,
    ):
        self.host = host
        self.port = port
        self._listening: ExitStack | None = None
        self._session = session
        self._engine = engine
        self._model = model
        self._settings = settings
        self._secrets = frozenset[str]().union(
            *(find_secrets(part) for part in (engine, model, settings))
        )
        self._served: ServedModel | None = None
        self.metrics = Metrics(lambda: self._served)
        if session is not None:
            self._served = self._make_served(session)
        routes = make_routes(self.served)
        self._router = Router(routes, redirect_slashes=False, lifespan=self._lifespan)
        self._paths = {route.path for route in routes}

    @property
    def base_url(self) -> str:
        """The URL under which clients reach the server; OpenAI's routes are under `/v1`."""
        return format_url(self.host, self.port)

    def start(self) -> Self:
        """Listen from a thread until `close`; a second call does nothing.

        Raises:
            ConfigurationError: the port is taken, or the address isn't one of this machine's.
            EngineRuntimeError: the session couldn't be built; the log says why.
        """
        if self._listening is None:
            with ExitStack() as stack:
                self.port = stack.enter_context(listening(self, self.host, self.port))
                self._listening = stack.pop_all()
        return self

    def close(self) -> None:
        """Let running requests finish, and stop listening. Idempotent."""
        running, self._listening = self._listening, None
        if running is not None:
            running.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def served(self) -> ServedModel:
        """Return the model; raise an `ApiError` (503) before it is built and after it is closed."""
        if self._served is None:
            raise make_unavailable("the server has no model yet, or none any more")
        return self._served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await self._router(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncGenerator[None]:
        built: BaseInferenceSession | None = None
        if self._session is None:
            assert self._engine is not None
            assert self._model is not None
            built = await asyncio.to_thread(self._engine.build, self._model)
        try:
            if self._served is None:
                session = built or self._session
                assert session is not None
                self._served = await asyncio.to_thread(self._make_served, session)
            yield
        finally:
            served, self._served = self._served, None
            if served is not None:
                await asyncio.to_thread(served.close)  # it waits for what runs
            if built is not None:
                await asyncio.to_thread(built.close)

    def _make_served(self, session: BaseInferenceSession) -> ServedModel:
        name = self._settings.model_name
        if name is None:
            name = self._model.name if self._model else type(session).__name__
        return ServedModel(session, name, self._settings, self.metrics, self._secrets)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        response = ResponseSender(send, get_client(scope), scope["headers"])
        scope["app"] = self  # makes the router raise for an unknown path
        if address := scope.get("client"):
            current_caller.set((address[0], address[1]))
        try:
            check_access(scope, self._settings)
            await self._router(scope, receive, response)
        except ClientDisconnect:
            self.metrics.aborted.inc()
            response.status = _CLIENT_CLOSED
        except asyncio.CancelledError:
            # The server stops, and the time for running requests is over.
            await _send_error(response, make_unavailable("the server ends"))
            raise
        except HTTPException as error:
            await _send_error(response, _to_routing_error(error, scope))
        except Exception as error:  # noqa: BLE001 - every failure gets an answer
            await _send_error(response, to_api_error(error, self._secrets))
        finally:
            self._log_request(scope, response, time.perf_counter() - began)

    def _log_request(self, scope: Scope, response: ResponseSender, seconds: float) -> None:
        path, status = scope["path"], response.status
        self.metrics.note_answer(path if path in self._paths else "other", status, seconds)
        if self._settings.log_requests:
            shown, note = ascii(path)[1:-1], self._format_body(scope)
            taken = f"{seconds * 1000:.1f} ms"
            name = response.request_id
            _log.info("%s %s %d %s %s%s", scope["method"], shown, status, taken, name, note)

    def _format_body(self, scope: Scope) -> str:
        body = scope.get("evalution.body")
        return "" if body is None else f" {redact_text(ascii(body)[2:-1], self._secrets)}"


async def _send_error(response: ResponseSender, error: ApiError) -> None:
    """Answer with `error`, unless an answer has begun."""
    if not response.status:
        await send_json(response, error.status, error.answer, error.headers)


def _to_routing_error(error: HTTPException, scope: Scope) -> ApiError:
    if error.status_code == 405:
        message, code = f"{scope['path']} doesn't take {scope['method']}", "method_not_allowed"
    else:
        message, code = f"no route {scope['path']}; /openapi.json lists them", "not_found"
    return ApiError(error.status_code, message, code=code, headers=error.headers)
