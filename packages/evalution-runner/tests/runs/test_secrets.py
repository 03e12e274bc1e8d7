"""A planted key is nowhere in what a run leaves behind or a command prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

KEY = "sk-Planted0Key1That2Nobody3May4See"
SPEC = f"""
engine:
  type: keyed:Keyed
  api_key: {KEY}
  base_url: "https://somebody:{KEY}@example.org/v1?api_key={KEY}"
  headers: {{Authorization: "Bearer {KEY}", X-Api-Key: {KEY}}}
  fault: FAULT
model: {{path: m, model_kwargs: {{token: {KEY}, depth: 3}}}}
tests:
  - {{type: generation, data: rows.jsonl, prompt: question, target: answer, max_new_tokens: 4}}
"""
ENGINE = '''
from collections.abc import Mapping
from dataclasses import dataclass, field
from evalution_core import (
    EngineRuntimeError, EngineUnavailableError, InvalidRequestError, RequestFailure, secret
)
from evalution_enginekit.mock import Mock, MockSession

@dataclass(slots=True)
class Keyed(Mock):
    """An engine that says its key wherever it can."""

    api_key: str | None = secret()
    base_url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: str = "none"

    def build(self, model):
        if self.fault == "build":
            raise ValueError(f"the server refused {self.api_key}")
        if self.fault == "unavailable":
            raise EngineUnavailableError(f"no server takes the key {self.api_key}")
        return KeyedSession(self)

class KeyedSession(MockSession):
    def __init__(self, engine):
        super().__init__("m", 512, 8)
        self.engine = engine

    def identity(self):
        return {"server": self.engine.base_url, "authorization": self.engine.api_key}

    def describe_execution(self):
        return {"backend": "keyed", "headers": self.engine.headers}

    def generate_continuous(self, requests, *, batch_size=None):
        answers = super().generate_continuous(requests, batch_size=batch_size)
        for number, (key, answer) in enumerate(answers):
            if self.engine.fault == "request" and number % 3 == 0:
                text = f"401 for {self.engine.api_key}"
                yield key, RequestFailure(InvalidRequestError(text), answer.metadata)
            elif self.engine.fault == "session" and number == 5:
                raise EngineRuntimeError(f"the server hung up on {self.engine.api_key}")
            elif self.engine.fault == "foreign" and number == 5:
                raise RuntimeError(f"headers={self.engine.headers}, key={self.engine.api_key}")
            else:
                yield key, answer

    def close(self):
        super().close()
        if self.engine.fault == "close":
            raise RuntimeError(f"can't log out {self.engine.api_key}")
'''
FAULTS = {
    "none": 0,
    "request": 3,
    "session": 1,
    "foreign": 1,
    "build": 1,
    "unavailable": 1,
    "close": 1,
}


@pytest.fixture
def keyed(folder: Path) -> Path:
    (folder / "keyed.py").write_text(ENGINE, encoding="utf-8")
    return folder


def written(folder: Path, fault: str) -> str:
    (folder / "spec.yaml").write_text(SPEC.replace("FAULT", fault), encoding="utf-8")
    return "spec.yaml"


def assert_hidden(done: Any, *folders: Path) -> None:
    assert KEY not in done.stdout
    assert KEY not in done.stderr
    for folder in folders:
        for file in folder.rglob("*"):
            assert file.is_dir() or KEY.encode() not in file.read_bytes(), file


@pytest.mark.parametrize("options", [[], ["--debug"]], ids=["plain", "debug"])
@pytest.mark.parametrize("fault", FAULTS)
def test_run_prints_no_key(command_line: Any, keyed: Path, fault: str, options: list[str]) -> None:
    done = command_line("run", written(keyed, fault), "--output", "out", "--allow-code", *options)
    assert done.returncode == FAULTS[fault], done.stderr
    assert_hidden(done, keyed / "out")


def test_validate_prints_no_key(command_line: Any, keyed: Path) -> None:
    done = command_line("validate", written(keyed, "none"), "--allow-code")
    assert done.returncode == 0, done.stderr
    assert_hidden(done)


@pytest.mark.parametrize("wrong", ["api_kez", "api_key"])
def test_wrong_option_is_reported_without_the_key(
    command_line: Any, keyed: Path, wrong: str
) -> None:
    spec = keyed / written(keyed, "none")
    value = f"[{KEY}]" if wrong == "api_key" else KEY
    text = spec.read_text(encoding="utf-8").replace(f"api_key: {KEY}", f"{wrong}: {value}")
    spec.write_text(text, encoding="utf-8")
    done = command_line("validate", "spec.yaml", "--allow-code")
    assert done.returncode == 2
    assert "api_key" in done.stderr
    assert_hidden(done)


def test_commands_that_read_a_run_print_no_key(command_line: Any, keyed: Path) -> None:
    for number, fault in enumerate(("request", "none")):
        command_line(
            *("run", written(keyed, fault), "--output", f"run{number}"),
            *("--cache", "cache", "--allow-code"),
        )
    commands = [
        ("show", "run0"),
        ("show", "run0", "--json"),
        ("show", "run0", "--samples", "rows", "--failed"),
        ("compare", "run0", "run1"),
        ("compare", "run0", "run1", "--json"),
    ]
    for words in commands:
        done = command_line(*words)
        assert done.returncode == 0, done.stderr
        assert_hidden(done)
    folders = [keyed / name for name in ("cache", "run0", "run1")]
    assert_hidden(command_line("show", "run1"), *folders)


def test_report_prints_no_key(command_line: Any, keyed: Path) -> None:
    pytest.importorskip("jinja2", reason="needs the extra evalution-runner[report]")
    command_line("run", written(keyed, "request"), "--output", "run", "--allow-code")
    (keyed / "pages").mkdir()
    done = command_line("report", "run", "--output", "pages/report.html")
    assert done.returncode == 0, done.stderr
    assert_hidden(done, keyed / "pages")


PLANTED = f"""
from dataclasses import dataclass
from evalution_core import secret
from evalution_enginekit.mock import Mock

@dataclass(slots=True)
class Planted(Mock):
    api_key: str = secret(default="{KEY}")
    deployment: str = "https://me:{KEY}@example.org/v1"

    def describe_runtime(self):
        return {{"device": "remote", "token": self.api_key, "url": self.deployment}}

@dataclass(slots=True)
class Refusing(Planted):
    def describe_runtime(self):
        print("connecting with", self.api_key)
        raise RuntimeError(f"no entry for {{self.api_key}}")
"""


@pytest.mark.parametrize(
    "command",
    [
        ("engines", "--json"),
        ("engines", "planted"),
        ("engines", "planted", "--json"),
        ("doctor", "planted", "refusing", "--model", "m"),
        ("doctor", "planted", "refusing", "--model", "m", "--json"),
    ],
    ids=" ".join,
)
def test_key_among_an_engine_s_defaults_is_not_printed(
    command_line: Any, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "planted_defaults.py").write_text(PLANTED, encoding="utf-8")
    info = tmp_path / "planted-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    entries = "Planted = planted_defaults:Planted\nRefusing = planted_defaults:Refusing\n"
    (info / "entry_points.txt").write_text(f"[evalution.engines]\n{entries}")
    done = command_line(*command)
    assert done.returncode == 0, done.stderr
    assert "planted" in done.stdout.casefold()
    assert_hidden(done)
