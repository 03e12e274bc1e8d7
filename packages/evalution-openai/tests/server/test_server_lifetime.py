"""From the start of a server to its end: what it is built of, what it builds, what it lets go."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from typing import Any

import httpx
import pytest

from evalution_core import BaseInferenceSession, ConfigurationError, Model
from evalution_enginekit.mock import Mock


def test_an_engine_is_built_when_the_server_starts_and_closed_when_it_ends() -> None:
    from evalution_openai.server import build_openai_compatible_server

    built: list[BaseInferenceSession] = []

    class Watched(Mock):
        def build(self, model: Model) -> Any:
            session = Mock.build(self, model)
            built.append(session)
            return session

    server = build_openai_compatible_server(engine=Watched(), model="some")
    assert not built
    with server:
        assert httpx.get(f"{server.base_url}/v1/models").json()["data"][0]["id"] == "some"
        (session,) = built
        session.check()
    with pytest.raises(RuntimeError, match="closed"):
        session.check()


def test_given_session_stays_open_after_the_server(
    serving: Any, mock: BaseInferenceSession
) -> None:
    from evalution_openai.server import build_openai_compatible_server

    for _ in range(2):
        with build_openai_compatible_server(session=mock) as server:
            assert complete(server) == 200
    mock.check()


def complete(server: Any) -> int:
    """The status of a completion."""
    body = {"prompt": "a", "max_tokens": 2}
    return httpx.post(f"{server.base_url}/v1/completions", json=body).status_code


def test_server_starts_listens_and_closes(mock: BaseInferenceSession) -> None:
    from evalution_openai.server import build_openai_compatible_server

    server = build_openai_compatible_server(session=mock, host="localhost", port=0)
    assert (server.host, server.port) == ("localhost", 0)
    assert server.start() is server
    try:
        port = server.port
        assert port > 0
        assert server.base_url == f"http://localhost:{port}"
        assert complete(server) == 200
        assert server.start().port == port, "a second start does nothing"
    finally:
        server.close()
        server.close()
    with pytest.raises(httpx.ConnectError):
        complete(server)
    with server:
        assert server.port == port, "it starts again where it listened"
        assert complete(server) == 200
    with pytest.raises(ConfigurationError, match="lets everybody who reaches this machine"):
        build_openai_compatible_server(session=mock, host="0.0.0.0")


def test_server_whose_session_cannot_be_built_does_not_start() -> None:
    from evalution_core import EngineRuntimeError
    from evalution_openai.server import build_openai_compatible_server

    class Broken(Mock):
        def build(self, model: Model) -> Any:
            raise EngineRuntimeError("no weights")

    server = build_openai_compatible_server(engine=Broken(), model="some")
    with pytest.raises(EngineRuntimeError, match="didn't start"):
        server.start()
    server.close()


def test_a_server_needs_a_session_or_an_engine(mock: BaseInferenceSession) -> None:
    from evalution_openai.server import build_openai_compatible_server

    for given in ({}, {"session": mock, "engine": Mock(), "model": "a"}):
        with pytest.raises(ConfigurationError, match="a session, or an engine and a model"):
            build_openai_compatible_server(**given)
    with pytest.raises(ConfigurationError, match="name the model to serve"):
        build_openai_compatible_server(engine=Mock())
    with pytest.raises(ConfigurationError, match="option 'max_queue' of server ServerSettings"):
        build_openai_compatible_server(session=mock, max_queue=-1)
    with pytest.raises(ConfigurationError, match="at least 8 characters"):
        build_openai_compatible_server(session=mock, api_key="short")


def test_server_without_lifespan_answers_503() -> None:
    from evalution_openai.server import build_openai_compatible_server

    app = build_openai_compatible_server(engine=Mock(), model="some")
    sent: list[Any] = []

    async def call() -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b"{}"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/health", "headers": []}
        await app(scope, receive, send)

    asyncio.run(call())
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"5") in sent[0]["headers"]


def test_request_cut_off_by_the_shutdown_gets_503() -> None:
    from evalution_openai.server import build_openai_compatible_server

    with Mock().build(Model("mock")) as session:

        async def serve() -> list[Any]:
            app = build_openai_compatible_server(session=session)
            sent: list[Any] = []

            async def send(message: Any) -> None:
                sent.append(message)

            async def receive() -> Any:
                return await asyncio.get_running_loop().create_future()

            headers = [(b"host", b"localhost")]
            scope = {"type": "http", "method": "POST", "path": "/v1/completions"}
            held = asyncio.ensure_future(app({**scope, "headers": headers}, receive, send))
            await asyncio.sleep(0)
            held.cancel()
            await asyncio.wait([held])
            assert held.cancelled()
            return sent

        start, body = asyncio.run(asyncio.wait_for(serve(), 20))
    assert start["status"] == 503
    assert (b"retry-after", b"5") in start["headers"]
    assert json.loads(body["body"])["error"]["message"] == "the server ends"


def test_session_built_by_the_server_is_released_at_its_end() -> None:
    from evalution_openai.server import build_openai_compatible_server

    built: list[weakref.ref[Any]] = []

    class Noting(Mock):
        def build(self, model: Model) -> Any:
            session = super().build(model)
            built.append(weakref.ref(session))
            return session

    async def serve() -> Any:
        app = build_openai_compatible_server(engine=Noting(), model=Model("mock"))
        async with app._lifespan(app):
            assert app.served().session is built[0]()
        return app

    app = asyncio.run(serve())
    gc.collect()
    assert built[0]() is None
    assert b"evalution_requests_inside 0.0" in app.metrics.render()
