from __future__ import annotations

import json
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
