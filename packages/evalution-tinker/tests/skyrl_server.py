"""A real server: SkyRL 0.3.0 with its JAX backend on a CPU, from this very environment.

Its API process starts its engine by the `uv run` command that it was itself started with, so there
has to be a project with extras of its names; with `--no-sync` nothing is installed for that.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

PROJECT = """
[project]
name = "skyrl-server"
version = "0"
requires-python = ">=3.11"
dependencies = []
[project.optional-dependencies]
tinker = []
jax = []
[tool.uv]
package = false
"""
# SkyRL 0.3.0 declares a field by typing.TypedDict, which pydantic takes from Python 3.12 on alone.
OLDER_PYTHON = """
import typing, typing_extensions
typing.TypedDict = typing_extensions.TypedDict
"""
STARTED_WITHIN_S = 240
STARTS = 2
"""A port may be taken meanwhile, and a busy machine may be too slow once."""


@contextmanager
def skyrl(folder: Path, base_model: Path) -> Generator[str]:
    """The URL of a server of `base_model`, stopped when the context ends; `folder` is its own."""
    process, url = _start(folder, base_model)
    try:
        yield url
    finally:
        _stop(process)


def _start(folder: Path, base_model: Path) -> tuple[subprocess.Popen[bytes], str]:
    for left in reversed(range(STARTS)):
        own = folder / f"{left}"
        own.mkdir()
        process, url = _spawn(own, base_model)
        try:
            _wait(url, process, own / "server.log")
        except RuntimeError:
            _stop(process)
            if not left:
                raise
        else:
            return process, url
    raise AssertionError


def _spawn(folder: Path, base_model: Path) -> tuple[subprocess.Popen[bytes], str]:
    (folder / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (folder / "sitecustomize.py").write_text(OLDER_PYTHON, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "UV_PROJECT_ENVIRONMENT": sys.prefix,
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
    }
    environment.pop("VIRTUAL_ENV", None)
    if sys.version_info < (3, 12):
        environment["PYTHONPATH"] = str(folder)
    command = ["uv", "run", "--offline", "--no-sync", "--frozen", "--extra", "tinker"]
    command += ["--extra", "jax", "-m", "skyrl.tinker.api"]
    command += ["--base-model", str(base_model), "--backend", "jax"]
    command += ["--backend-config", '{"max_lora_adapters": 3, "max_lora_rank": 8}']
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--database-url", f"sqlite:///{folder / 'server.db'}"]
    command += ["--checkpoints-base", str(folder / "checkpoints")]
    with (folder / "server.log").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own: API and engine end together
        )
    return process, f"http://127.0.0.1:{port}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # it has ended by itself
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTED_WITHIN_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/api/v1/get_server_capabilities", timeout=5):
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.5)
    raise RuntimeError(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")
