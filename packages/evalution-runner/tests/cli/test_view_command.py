"""`evalution view`: its address, and each mistake in a sentence."""

from __future__ import annotations

import socket
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs evalution-runner[view]")

import evalution.view.server as server

CommandLine = Callable[..., Any]


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that a browser was asked to open; the server ends at once."""
    found: list[str] = []
    monkeypatch.setattr(webbrowser, "open", found.append)
    monkeypatch.setattr(server, "serve", lambda *_: sys.stdout.flush())
    return found


def test_address_is_printed(command_line: CommandLine, tmp_path: Path, opened: list[str]) -> None:
    (tmp_path / "runs").mkdir()
    done = command_line("view", "--no-browser")
    assert done.returncode == 0
    assert done.stdout.startswith("http://127.0.0.1:")
    assert done.stdout.endswith("/ shows no run yet in runs; Ctrl-C ends it\n")
    assert opened == []


def test_missing_folder_is_named(command_line: CommandLine) -> None:
    done = command_line("view")
    assert done.returncode == 2
    assert done.stderr == (
        "error: there is no folder runs; name the one in which your runs are, or begin a run with "
        "`evalution run`\n"
    )


def test_port_in_use_is_named(command_line: CommandLine, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = command_line("view", str(tmp_path), "--port", port)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: port {port} can't be used: Address already in use; name another --port, or 0 for "
        "a free one\n"
    )


def test_missing_extra_is_named(
    command_line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    done = command_line("view", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == (
        "error: a page of runs needs starlette, which isn't installed; pip install "
        "'evalution-runner[view]'\n"
    )
