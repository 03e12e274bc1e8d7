from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evalution.cli import app
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    GenerationOutput,
    LoglikelihoodOutput,
    Model,
    RollingLoglikelihoodOutput,
)

Events = Iterator[tuple[Hashable, Any]]


class ScriptedSession(BaseInferenceSession):
    """Answers every request rightly unless `script` rearranges the stream of answers."""

    def __init__(self, script: Callable[[Events], Events] = iter) -> None:
        self.script = script
        self.calls: list[str] = []

    def generate(self, requests: Sequence[Any], *, batch_size: int | None = None) -> list[Any]:
        return [GenerationOutput(r.prompt or "", "4", r.metadata) for r in requests]

    def loglikelihood(self, requests: Sequence[Any], *, batch_size: int | None = None) -> list[Any]:
        return [LoglikelihoodOutput(-float(len(r.continuation)), True, 1) for r in requests]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], *, batch_size: int | None = None
    ) -> list[Any]:
        return [RollingLoglikelihoodOutput(-float(len(r.text)), len(r.text)) for r in requests]

    def generate_continuous(
        self, requests: Iterable[tuple[Any, Any]], *, batch_size: int | None = None
    ) -> Events:
        return self.script((key, self.generate([request])[0]) for key, request in requests)

    def loglikelihood_continuous(
        self, requests: Iterable[tuple[Any, Any]], *, batch_size: int | None = None
    ) -> Events:
        return self.script((key, self.loglikelihood([request])[0]) for key, request in requests)

    def gc(self) -> None:
        self.calls.append("gc")

    def close(self) -> None:
        self.calls.append("close")


@dataclass(slots=True)
class Scripted(BaseEngine):
    """Builds the session it was given; `failures` builds fail first."""

    session: Any = None
    failures: list[BaseException] = field(default_factory=list)

    def build(self, model: Model) -> BaseInferenceSession:
        if self.failures:
            raise self.failures.pop()
        return self.session


@pytest.fixture
def scripted_session() -> type[ScriptedSession]:
    return ScriptedSession


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., str]:
    """Writes rows as JSONL and returns the file's path."""

    def write(*rows: Mapping[str, Any], name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return write


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a person sees of a command."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Runs the command line in `tmp_path`, where modules can be imported from too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(*arguments: str) -> Outcome:
        done = CliRunner().invoke(app, arguments)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Outcome(done.exit_code, done.stdout, done.stderr)

    return run


MOCK = "evalution_enginekit.mock:Mock"
ROW = {"question": "1 + 1?", "answer": "2", "choices": ["1", "2"], "right": 1}
TEST = '{type: generation, data: rows.jsonl, prompt: "Q: {question}", target: answer}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with thirty rows in `rows.jsonl`."""
    text = "".join(json.dumps(ROW) + "\n" for _ in range(30))
    (tmp_path / "rows.jsonl").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def spec() -> Callable[..., str]:
    """Writes `spec.yaml` into a folder and returns its name."""

    def write(folder: Path, *, engine: str = MOCK, tests: str = f"[{TEST}]", rest: str = "") -> str:
        text = f'engine: "{engine}"\nmodel: {{path: m, label: my model}}\ntests: {tests}\n{rest}'
        (folder / "spec.yaml").write_text(text, encoding="utf-8")
        return "spec.yaml"

    return write


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[..., None]:
    """Puts the distribution NAME-plugin 2.1 into `tmp_path`: modules by name, and entry points."""

    def put(name: str, entry_points: str, **modules: str) -> None:
        for module, code in modules.items():
            (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
        info = tmp_path / f"{name}_plugin-2.1.dist-info"
        info.mkdir()
        about = f"Metadata-Version: 2.1\nName: {name}-plugin\nVersion: 2.1\n"
        (info / "METADATA").write_text(about, encoding="utf-8")
        (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")

    return put


@pytest.fixture
def end_when_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Ends every time limit of that many seconds once the child has opened the FIFO `reached`."""

    def patch(limit: float) -> None:
        class Impatient(subprocess.Popen[bytes]):
            def wait(self, timeout: float | None = None) -> int:
                if timeout is not None and timeout == limit:
                    os.close(os.open(tmp_path / "reached", os.O_RDONLY))
                    raise subprocess.TimeoutExpired(self.args, timeout)
                return super().wait(timeout)

        os.mkfifo(tmp_path / "reached")
        monkeypatch.setattr(subprocess, "Popen", Impatient)

    return patch


@pytest.fixture
def assert_says() -> Callable[[Any, int, str], None]:
    """Asserts that a command ended with this code and one line of error, without a traceback."""

    def check(done: Any, code: int, message: str) -> None:
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        told = [line for line in done.stderr.splitlines() if not line.startswith("hint: ")]
        assert told[-1].startswith("error: ")
        assert message in told[-1]

    return check
