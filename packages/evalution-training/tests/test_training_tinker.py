"""The backend `tinker` against servers that answer, refuse, and aren't there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from evalution_core import ConfigurationError, EngineUnavailableError
from evalution_training import backends as libraries
from evalution_training import make_backend, prepare_model

Install = Callable[..., Path]
STUB = """
from concurrent.futures import Future

class ServiceClient:
    def __init__(self, *, base_url, api_key):
        self.base_url, self.api_key, self.ended = base_url, api_key, []

    def close(self, status):
        self.ended.append(status)
        future = Future()
        future.set_result(None)
        return future
"""
KEY = "tml-a-very-secret-key"


class Server(HTTPServer):
    """Answers every request with `status`; notes path and key of each."""

    status = 200
    asked: list[tuple[str, str | None]]


class Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["X-API-Key"]))
        self.send_response(self.server.status)
        if self.server.status == 302:
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def server() -> Generator[Server]:
    with Server(("127.0.0.1", 0), Handler) as found:
        found.asked = []
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def stub(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("tinker", {"tinker.py": STUB}, {})
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)


def make_url(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def prepare_handles(tmp_path: Path, **params: Any) -> dict[str, Any]:
    model = {"name": "org/m", "load_checkpoint_path": "tinker://x", "renderer_name": "qwen3"}
    with prepare_model("tinker", model=model, run_dir=tmp_path, params=params) as handles:
        return dict(handles)


@pytest.mark.parametrize("status", [200, 404, 500])
def test_any_answer_counts_as_alive(server: Server, status: int, tmp_path: Path) -> None:
    server.status = status
    handles = prepare_handles(tmp_path, base_url=make_url(server) + "/")
    assert server.asked == [("/api/v1/get_server_capabilities", KEY)]
    client = handles.pop("service_client")
    assert (client.base_url, client.api_key) == (make_url(server), KEY)
    assert client.ended == ["success"]
    assert handles == {
        "backend": "tinker",
        "model_name": "org/m",
        "renderer_name": "qwen3",
        "load_checkpoint_path": "tinker://x",
        "init_from_checkpoint": None,
        "run_dir": str(tmp_path),
    }


def test_key_is_read_at_preparation_and_never_shown(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", make_url(server))
    monkeypatch.setenv("OTHER_KEY", "another-secret-key")
    assert prepare_handles(tmp_path, api_key_env="OTHER_KEY")["service_client"].base_url
    assert server.asked[0][1] == "another-secret-key"


def test_unset_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="environment variable NO_SUCH_KEY, which isn't"):
        prepare_handles(tmp_path, api_key_env="NO_SUCH_KEY", base_url="http://127.0.0.1:9")


def test_rejected_key_is_reported(server: Server, tmp_path: Path) -> None:
    server.status = 401
    with pytest.raises(ConfigurationError, match=r"refuses the key in TINKER_API_KEY \(HTTP 401\)"):
        prepare_handles(tmp_path, base_url=make_url(server))


def test_redirect_is_not_followed_with_the_key(server: Server, tmp_path: Path) -> None:
    server.status = 302
    with pytest.raises(ConfigurationError, match=r"to http://127\.0\.0\.1:9/elsewhere, which"):
        prepare_handles(tmp_path, base_url=make_url(server))


@pytest.mark.parametrize("place", ["tinker.example", "tinker.example:80/x"])
def test_password_in_the_address_is_refused_unshown(place: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds a name and password") as raised:
        prepare_handles(tmp_path, base_url=f"http://bob:hunter2secret@{place}")
    assert "hunter2" not in str(raised.value)


def test_key_with_a_line_break_is_reported_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-one\ntml-two")
    with pytest.raises(ConfigurationError, match="the key in TINKER_API_KEY has a line") as raised:
        prepare_handles(tmp_path, base_url="http://127.0.0.1:9")
    assert "tml-" not in str(raised.value)


def test_host_that_is_no_name_is_reported(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailableError, match=r"answers at http://a\.\.b within 90 s"):
        prepare_handles(tmp_path, base_url="http://a..b")


def test_unreachable_server_is_reported_at_once(server: Server, tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(EngineUnavailableError, match=f"answers at {url} within 90 s"):
            prepare_handles(tmp_path, base_url=url)


def test_silent_server_times_out(tmp_path: Path) -> None:
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(EngineUnavailableError, match=r"within 0\.2 s .*timed out"):
            prepare_handles(tmp_path, base_url=url, timeout=0.2)


def test_url_without_http_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"must begin with http:// or https://, got 'file:"
    ):
        prepare_handles(tmp_path, base_url="file:///etc/passwd")


def test_wrong_port_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(
            ConfigurationError, match=r"is not a URL: 'http://host:port' \(nonnumeric port"
        ),
        prepare_model(
            "tinker", model="m", run_dir=tmp_path, params={"base_url": "http://host:port"}
        ),
    ):
        pass


@pytest.mark.parametrize("timeout", [0, float("nan"), float("inf")])
def test_timeout_must_be_positive_and_finite(timeout: float) -> None:
    with pytest.raises(ConfigurationError, match="param 'timeout' of backend 'tinker'"):
        make_backend("tinker", {"timeout": timeout})


def test_key_in_place_of_its_variable_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="name of an environment variable") as caught:
        make_backend("tinker", {"api_key_env": "tml-the-key-itself"})
    assert "tml-the-key-itself" not in str(caught.value)


def test_missing_tinker_names_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(libraries, "import_module", missing)
    expected = r'needs tinker, which isn.t installed; pip install "evalution-training\[tinker\]"'
    with pytest.raises(EngineUnavailableError, match=expected):
        prepare_handles(tmp_path)
