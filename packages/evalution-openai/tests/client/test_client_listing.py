"""What a server lists, and what is there in place of a server."""

from __future__ import annotations

import asyncio
import gc
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from evalution_core import ConfigurationError, EngineUnavailableError, Model
from evalution_openai.engine import OpenAICompatible

PAGE = "<!DOCTYPE html>\n<html><head><title>Welcome to\nnginx!</title></head></html>"
NO_API = r"no server with OpenAI's routes answers at http://server\.test/v1: (/v1)?/models "


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (httpx.Response(200, text=PAGE), r"answered a web page \(HTML\) .* 'Welcome to nginx!'"),
        (httpx.Response(404, text=PAGE), r"answered 404: a web page \(HTML\) with the title"),
        (httpx.Response(200, content=b"\xff\xfe garbage"), "answered invalid JSON: '.* garbage'"),
        (httpx.Response(200, text="3"), "answered something other than a JSON object"),
        (httpx.Response(200, json={"status": "ok"}), "answered without 'data': .'status': 'ok'"),
        (httpx.Response(500, text="Internal Server Error"), "answered 500: Internal Server Error"),
        (httpx.Response(404, json={"detail": "Not Found"}), "answered 404: Not Found"),
        (httpx.Response(404, text="[" * 200_000), r"answered 404: \[{200}…"),
        (
            httpx.Response(404, text=f"<html>{' ' * 4096}<title>Late</title>"),
            r"answered 404: a web page \(HTML\) with the title ''",
        ),
    ],
)
def test_what_is_no_server_is_named_at_once(
    connect: Callable[..., Any], server: Any, clock: Any, answer: httpx.Response, message: str
) -> None:
    server.everything = lambda _: answer
    with pytest.raises(EngineUnavailableError, match=NO_API + message) as caught:
        connect()
    assert "/completions and /chat/completions failed too" in str(caught.value)
    assert sum(clock.slept) < 5.0


def test_server_that_closes_every_connection_is_named(
    connect: Callable[..., Any], server: Any, clock: Any
) -> None:
    def close(_: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError("Server disconnected without sending a response.")

    server.everything = close
    with pytest.raises(EngineUnavailableError, match=r"Server disconnected .* set base_url"):
        connect()
    assert sum(clock.slept) < 5.0


def test_server_that_answers_nothing_is_named_without_further_routes(
    connect: Callable[..., Any], server: Any
) -> None:
    async def wait(_: httpx.Request) -> httpx.Response:
        return await asyncio.Future[httpx.Response]()

    server.everything = wait
    message = r"nothing is answered at http://server\.test/v1: .* 2 tries.* or timeout_s to the sec"
    with pytest.raises(EngineUnavailableError, match=message):
        connect(timeout_s=0.01)
    assert [request.url.path for request in server.requests] == ["/v1/models"] * 2


def test_first_slow_try_to_list_models_is_logged(
    connect: Callable[..., Any], server: Any, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def wait(_: httpx.Request) -> httpx.Response:
        clock.time += 30.0
        raise httpx.ReadTimeout("slow")

    server.fails("/models", wait)
    assert connect(scoring="none").describe_execution()["model"] == "scripted"
    (line,) = caplog.messages
    assert "/v1/models failed: ReadTimeout: slow; trying again" in line


def test_server_without_a_list_of_models_is_used(connect: Callable[..., Any], server: Any) -> None:
    server.routes -= {"/models", "/tokenize"}
    session = connect(Model("any"), api="chat")
    assert session.describe_execution()["model"] == "any"
    assert server.bodies("/completions")[0] == {"model": "any"}, "no prompt: nothing is charged"


def test_busy_server_is_waited_for(
    connect: Callable[..., Any], server: Any, faulty: Any, clock: Any
) -> None:
    server.fails("/models", *[faulty(503, "loading the model")] * 4)
    assert connect().describe_execution()["model"] == "scripted"
    assert sum(clock.slept) > 3.0


@pytest.fixture
def tls_port(tmp_path: Path) -> Iterator[int]:
    """A server that speaks TLS alone, and leaves open what the other side doesn't close."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, isn't installed")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    made += ["-nodes", "-subj", "/CN=localhost", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run(made, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    over = threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def handle(self) -> None:
            over.wait(20)

    with HTTPServer(("127.0.0.1", 0), Slow) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        over.set()
        server.shutdown()
        thread.join()


def test_tls_on_a_plain_url_is_named_and_no_connection_stays_open(tls_port: int) -> None:
    engine = OpenAICompatible(f"http://127.0.0.1:{tls_port}")
    message = rf"speaks TLS: set base_url to https://127\.0\.0\.1:{tls_port}/v1"
    with pytest.raises(ConfigurationError, match=message):
        engine.build(Model("m"))
    gc.collect()  # warns of what is open


def test_model_that_is_not_listed_is_refused(connect: Callable[..., Any], server: Any) -> None:
    message = r"has no model 'scriptde'; it lists scripted; set model\.path .* to 'scripted', or"
    with pytest.raises(ConfigurationError, match=message):
        connect(Model("scriptde"))
    with pytest.raises(ConfigurationError, match=r"has no model 'm2'; .*; allow_unlisted: true is"):
        connect(model_name="m2")
    with pytest.raises(
        ConfigurationError, match=r"a folder called 'scripted' .* model_name to 'sc"
    ):
        connect(Model("/runs/scripted"))
    many = {"data": [{"id": f"m{number}"} for number in range(30)]}
    server.fails("/models", lambda _: httpx.Response(200, json=many))
    with pytest.raises(ConfigurationError, match=r"it lists m0, m1, .*, m7 and 22 more; set"):
        connect(Model("llama"))


def test_listed_names_are_read_in_the_forms_of_servers(
    connect: Callable[..., Any], server: Any
) -> None:
    for listed, name in [
        ([{"id": "one"}, {"id": "two"}], "two"),  # a bare array, as Together's
        ({"data": [{"id": "one:latest"}]}, "one"),  # a tag that may be left out, as Ollama's
        ({"data": None}, "any"),  # nothing is known
    ]:
        server.fails("/models", lambda _, listed=listed: httpx.Response(200, json=listed))
        assert connect(Model(name), scoring="none").describe_execution()["model"] == name


def test_another_models_window_is_not_taken(connect: Callable[..., Any], server: Any) -> None:
    listed = [{"id": "one", "max_model_len": 64}, {"id": "two", "max_model_len": 128}]
    server.fails("/models", *[lambda _: httpx.Response(200, json={"data": listed})] * 2)
    unlisted = connect(Model("three"), scoring="none", api="chat", allow_unlisted=True)
    assert unlisted.info.max_model_len is None
    assert connect(Model("two"), scoring="none", api="chat").info.max_model_len == 128
