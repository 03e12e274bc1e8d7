"""Wheels of the workspace and empty environments to install them in, and programs to run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

Uv = Callable[..., str]
Environment = Callable[..., Path]


@pytest.fixture(scope="session")
def uv() -> Uv:
    """Runs a uv command at the root and returns what it prints; a failure shows its output."""
    path = os.environ.get("UV") or shutil.which("uv")
    assert path, "uv is not on PATH"

    def run(*arguments: str | Path, environment: Path | None = None) -> str:
        variables = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(environment)}
        command = [path, *map(str, arguments)]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=variables if environment else None,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


@pytest.fixture(scope="session")
def member_wheels(uv: Uv, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of every member of the workspace."""
    folder = tmp_path_factory.mktemp("member_wheels")
    uv("build", "--all-packages", "--wheel", "--quiet", "--out-dir", folder)
    return folder


@pytest.fixture(scope="session")
def empty_environment(uv: Uv, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Makes an environment with members, what they need from others as locked, and no more."""

    def make(*members: str, find_links: Path, wheels: Sequence[Path] = ()) -> Path:
        folder = tmp_path_factory.mktemp("environment") / "venv"
        uv("venv", "--quiet", "--python", sys.executable, folder)
        third_party = ["--frozen", "--no-dev", "--no-install-workspace"]
        named = [f"--package={member}" for member in members]
        uv("sync", "--quiet", *third_party, *named, environment=folder)
        python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        # No index: what the lock does not bring must come from our own wheels.
        own = ["--no-index", "--find-links", find_links, "--python", python]
        uv("pip", "install", "--quiet", *own, *members, *wheels)
        return python

    return make


Programs = Callable[[Sequence[str], Path, Mapping[str, str]], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def run_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Runs this interpreter with arguments, in a folder and an environment, in a process."""
    if sys.platform != "linux":  # elsewhere a fork may not use all that its parent imported
        yield run_interpreter
        return
    folder = tmp_path_factory.mktemp("programs")
    server = subprocess.Popen(
        [sys.executable, ROOT / "tests" / "program_server.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    answers = server.stdout
    assert answers is not None
    count = 0

    def run(
        arguments: Sequence[str], cwd: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        nonlocal count
        count += 1
        output, errors = folder / f"{count}.output", folder / f"{count}.errors"
        job = {"arguments": arguments, "folder": str(cwd), "environment": dict(environment)}
        job |= {"output": str(output), "errors": str(errors)}
        print(json.dumps(job), file=server.stdin, flush=True)
        status = int(answers.readline())
        printed = (file.read_text(encoding="utf-8") for file in (output, errors))
        return subprocess.CompletedProcess(arguments, status, *printed)

    with server:
        yield run
    assert server.returncode == 0


def run_interpreter(
    arguments: Sequence[str], cwd: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
