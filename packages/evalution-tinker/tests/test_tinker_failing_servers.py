"""Servers that answer the first question and then fail, or answer it in no known way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from evalution_core import ConfigurationError, EngineUnavailableError, Model
from evalution_tinker import Tinker
from evalution_tinker import runtime as clients

pytest.importorskip("tinker", reason="tinker is not installed")

# tinker 0.24 and 0.38 leave a connection open however they are closed.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <(function _SelectorTransport|socket\.socket)"
    ":pytest.PytestUnraisableExceptionWarning"
)

Write = Callable[[Any], None]


@contextmanager
def serving(answer: Write) -> Generator[str]:
    """The URL of a server that answers everything in one way."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_redirect_is_not_followed_with_the_key() -> None:
    asked: list[str] = []

    def moved(request: Any) -> None:
        request.send_response(302)
        request.send_header("Location", f"{elsewhere}/taken")
        request.send_header("Content-Length", "0")
        request.end_headers()

    with serving(lambda request: asked.append(request.path)) as elsewhere, serving(moved) as url:
        message = f"redirects to {elsewhere}/taken, which is not followed"
        with pytest.raises(ConfigurationError, match=message):
            Tinker(base_url=url).build(Model("builtin:tiny"))
    assert not asked


def test_server_that_fails_after_its_sign_of_life_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(request: Any) -> None:
        request.send_response(500)
        request.send_header("Content-Length", "0")
        request.end_headers()

    monkeypatch.setattr(clients, "CLOSING_S", 0.2)
    engine = Tinker(tokenizer_path="builtin:tiny", timeout_s=3)
    with (
        serving(failing) as engine.base_url,
        pytest.raises(EngineUnavailableError, match=r"made no sampling client within 3 s"),
    ):
        engine.build(Model("a-model"))


def test_server_of_another_protocol_is_unavailable() -> None:
    engine = Tinker()
    with (
        serving(lambda request: request.wfile.write(b"SSH-2.0-a-shell\r\n\r\n")) as engine.base_url,
        pytest.raises(EngineUnavailableError, match="no Tinker-compatible server answers"),
    ):
        engine.build(Model("a-model"))


def test_malformed_model_list_counts_as_empty() -> None:
    def odd(request: Any) -> None:
        body = b'{"supported_models": ["a-model", {"model_name": 3}]}'
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    engine = Tinker()
    with (
        serving(odd) as engine.base_url,
        pytest.raises(ConfigurationError, match=r"lists no model; set model\.path"),
    ):
        engine.build(Model())


def test_key_in_place_of_its_variable_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="the name of an environment variable") as raised:
        Tinker(api_key_env="tml-the-key-itself")
    assert "tml-the-key-itself" not in str(raised.value)


def test_server_that_refuses_connections_is_unavailable() -> None:
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(EngineUnavailableError, match=f"answers at {url} within 90 s"):
            Tinker(base_url=url).build(Model("builtin:tiny"))


def test_server_that_never_answers_is_unavailable() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(EngineUnavailableError, match=r"within 0\.2 s .*timed out"):
            Tinker(base_url=url, timeout_s=0.2).build(Model("builtin:tiny"))
