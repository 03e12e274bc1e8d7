"""The server as a process and on a socket: binds, slow clients, and its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from evalution_core import BaseInferenceSession, ConfigurationError

SERVE = """
import sys, typer
from evalution_openai.server.command import serve
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(serve)
app()
"""


@pytest.mark.parametrize(
    ("host", "has_key", "said_twice", "allowed"),
    [
        ("127.0.0.1", False, False, True),
        ("::1", False, False, True),
        ("localhost", False, False, True),
        ("0.0.0.0", False, False, False),
        ("::", False, False, False),
        ("192.0.2.7", False, False, False),
        ("some.name", False, False, False),
        ("0.0.0.0", True, False, True),
        ("0.0.0.0", False, True, True),
    ],
)
def test_public_address_needs_a_key_or_public_without_key(
    host: str, has_key: bool, said_twice: bool, allowed: bool
) -> None:
    from evalution_openai.server.settings import ServerSettings, check_bind

    settings = ServerSettings(api_key="a-long-key" if has_key else None, any_host=said_twice)
    if allowed:
        check_bind(host, settings)
    else:
        with pytest.raises(ConfigurationError, match=r"--api-key-env NAME .*, or say --public"):
            check_bind(host, settings)


def test_taken_port_is_reported() -> None:
    from evalution_openai.server.connections import bind_socket

    with (
        bind_socket("127.0.0.1", 0) as first,
        pytest.raises(ConfigurationError, match=r"can't listen on 127.0.0.1, port \d+: "),
    ):
        bind_socket("127.0.0.1", first.getsockname()[1])


def test_answer_body_is_not_delayed_by_nagle() -> None:
    from evalution_openai.server.connections import bind_socket

    with bind_socket("127.0.0.1", 0) as bound:
        with socket.create_connection(bound.getsockname()):
            accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def raw(client: httpx.Client) -> socket.socket:
    url = client.base_url
    return socket.create_connection((url.host, url.port), timeout=20)


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_body_that_never_arrives_gets_408(serving: Any, tiny: BaseInferenceSession) -> None:
    client = serving(session=tiny, body_timeout_s=0.3)
    with raw(client) as slow:
        slow.sendall(HEAD + b"Content-Length: 500\r\n\r\n" + b'{"prompt"')
        # It hurts nobody else meanwhile.
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
        answer = slow.recv(10_000)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"longer than 0.3 s" in answer
        assert b"connection: close" in answer.lower()


def test_disconnect_during_the_body_releases_everything(
    serving: Any, tiny: BaseInferenceSession
) -> None:
    client = serving(session=tiny)
    with raw(client) as gone:
        gone.sendall(HEAD + b"Content-Length: 500\r\n\r\n" + b'{"prompt"')
    assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
    assert "evalution_requests_inside 0.0" in client.get("/metrics").text


@pytest.mark.parametrize(
    "request_bytes",
    [b"NONSENSE\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n",
     HEAD + b"Content-Length: -5\r\n\r\n", HEAD + b"Content-Length: 1e9\r\n\r\n"],
    ids=range(5),
)  # fmt: skip
def test_data_that_is_not_http_is_refused(client: httpx.Client, request_bytes: bytes) -> None:
    with raw(client) as odd:
        odd.sendall(request_bytes)
        answer = odd.recv(1000)
        assert not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 5")), answer
    assert client.get("/health").status_code == 200


@pytest.fixture
def process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`serve` with a mock model, and its base URL."""
    engine = ["--engine", "evalution_enginekit.mock:Mock", "-o", "max_model_len=8192"]
    command = [sys.executable, "-c", SERVE, "mock", *engine, "--port", "0"]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=os.getcwd()
    )
    assert running.stdout is not None
    line = running.stdout.readline()
    assert line.startswith("serving mock on http://127.0.0.1:"), running.communicate()
    yield running, line.split(" on ")[1].split("/v1")[0]
    running.kill()
    running.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_finishes_running_requests(
    process: tuple[subprocess.Popen[str], str], number: signal.Signals
) -> None:
    running, url = process
    body = {"prompt": "Tom", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    text: list[str] = []
    begun = threading.Event()

    def ask() -> None:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            for part in answer.iter_text():
                text.append(part)
                begun.set()

    asking = threading.Thread(target=ask)
    asking.start()
    assert begun.wait(30)
    running.send_signal(number)
    asking.join(60)
    joined = "".join(text)
    assert joined.endswith("data: [DONE]\n\n")
    assert json.loads(joined.split("\n\n")[-3][6:])["choices"][0]["finish_reason"] == "length"
    _, log = running.communicate(timeout=30)
    assert running.returncode == 0, log
    assert "POST /v1/completions 200" in log
    assert "Tom" not in log
    assert "Traceback" not in log


def test_prompts_are_logged_only_with_log_prompts(
    serving: Any, tiny: BaseInferenceSession, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"prompt": "a very\nprivate thing", "max_tokens": 1}
    with caplog.at_level("INFO", logger="evalution_openai.server"):
        serving(session=tiny).post("/v1/completions", json=body)
        assert "POST /v1/completions 200" in caplog.text
        assert "private" not in caplog.text
        serving(session=tiny, log_prompts=True).post("/v1/completions", json=body)
        assert r"a very\\nprivate thing" in caplog.text
        lines = len(caplog.messages)
        serving(session=tiny, log_requests=False).post("/v1/completions", json=body)
        assert len(caplog.messages) == lines


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--engine", "Nothing"], "no engine 'Nothing'"),
        (["--engine", "Reference", "-o", "batch_size"], "'batch_size' is not KEY=VALUE"),
        (["--engine", "Reference", "-o", "batchsize=2"], "batch_size"),
        (["--engine", "Reference", "-m", "tokeniser_path=a"], "did you mean 'tokenizer_path'"),
        (["--engine", "Reference", "--host", "0.0.0.0"], "--public-without-key"),
        (["--engine", "Reference", "--api-key-env", "NOT_SET"], "variable is not set"),
        (["--engine", "Reference", "--api-key-env", "SHORT_KEY"], "at least 8 characters"),
        (
            ["--engine", "Reference", "--max-held-mib", "15"],
            "--max-held-mib 15 leaves no room for one body of --max-body-mib 16; raise it, or",
        ),
    ],
)
def test_bad_command_line_fails_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    import typer

    from evalution_openai.server.command import serve

    monkeypatch.setenv("SHORT_KEY", "short")
    app = typer.Typer()
    app.command()(serve)
    with pytest.raises(ConfigurationError, match=told):
        app(["builtin:tiny", *arguments], standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "body", "held"),
    [
        ([], 16, 128),
        (["--max-body-mib", "2"], 2, 16),
        (["--max-held-mib", "16"], 16, 16),
        (["--max-body-mib", "2", "--max-held-mib", "3"], 2, 3),
    ],
)
def test_sizes_are_given_in_mebibytes(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], body: int, held: int
) -> None:
    import typer

    from evalution_openai.server import command

    found: list[Any] = []
    monkeypatch.setattr(command, "_serve", lambda *given: found.append(given[2]))
    app = typer.Typer()
    app.command()(command.serve)
    app(["builtin:tiny", "--engine", "Reference", *arguments], standalone_mode=False)
    (settings,) = found
    assert settings.max_body_bytes == body * 1024**2
    assert settings.body_budget == held * 1024**2
