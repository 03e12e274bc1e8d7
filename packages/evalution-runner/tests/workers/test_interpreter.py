"""Engines of another Python environment, which its own interpreter finds, checks and runs."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from evalution.environment import Environment, read_environment
from evalution.replicas import Replicas
from evalution.runs.session import SessionHolder
from evalution.runs.store import make_run_answer_base
from evalution.workers import child, declare_engine
from evalution.workers.declaration import answer_question
from evalution.yaml_spec.run_spec import parse_engine
from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    EngineUnavailableError,
    Model,
    UnknownEngineError,
    secret,
)
from evalution_core.options import numeric_options
from evalution_enginekit.mock import Mock

MOCK = "evalution_enginekit.mock:Mock"
BOTH = (
    f"evalution-runner=={version('evalution-runner')} evalution-core=={version('evalution-core')}"
)
ENGINE = """
from dataclasses import dataclass
from evalution_core import secret, speed_only
from evalution_enginekit.mock import Mock

@dataclass(slots=True)
class Elsewhere(Mock):
    flavour: str = "plain"
    key: str | None = secret()
    pace: int = speed_only(default=1)

    def describe_runtime(self):
        return {"version": "7.0"}
"""
RUN = """
engine:
  kind: elsewhere
  python: {python}
  params: {{flavour: "fine", key: hunter2-hunter2}}
model: m
tests: [{{type: generation, data: rows.jsonl, prompt: "Q: {{question}}", target: answer}}]
"""


class Venv:
    """An environment that a test makes, with what it puts there."""

    def __init__(self, folder: Path):
        venv.create(folder, symlinks=True)
        self.python = folder / "bin" / "python"
        (self.packages,) = folder.glob("lib/python*/site-packages")

    def add_distribution(self, name: str, number: str, entry_points: str = "") -> None:
        info = self.packages / f"{name.replace('-', '_')}-{number}.dist-info"
        info.mkdir()
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n"
        (info / "METADATA").write_text(about)
        (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Venv:
    """The packages of this environment, and an engine that this one lacks."""
    made = Venv(tmp_path_factory.mktemp("other") / "env")
    shared = sysconfig.get_path("purelib")
    (made.packages / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
    entry = "[evalution.engines]\nElsewhere = elsewhere_engine:Elsewhere\n"
    made.add_distribution("elsewhere-plugin", "2.1", entry)
    (made.packages / "elsewhere_engine.py").write_text(ENGINE)
    return made


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs bin/python")


def test_run_is_one_of_the_other_environment(
    other: Venv, command_line: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere-of-the-parent")
    python = os.path.relpath(other.python, folder)
    (folder / "spec.yaml").write_text(RUN.format(python=python))
    done = command_line("run", "spec.yaml", "--output", "out", "--limit", "2", "--allow-code")
    assert done.returncode == 0, done.stderr
    text = (folder / "out" / "results.json").read_text()
    found = json.loads(text)
    engine = found["engine"]
    assert (engine["name"], engine["distribution"], engine["version"]) == (
        "Elsewhere",
        "elsewhere-plugin",
        "2.1",
    )
    assert engine["options"]["flavour"] == "fine"
    assert engine["options"]["python"] == engine["execution"]["python"]
    assert Path(engine["options"]["python"]).samefile(other.python)
    assert engine["execution"]["isolated"] is True
    assert found["versions"]["elsewhere-plugin"] == "2.1", "versions are those of that environment"
    assert "hunter2" not in text
    assert "elsewhere_engine" not in sys.modules
    (other.packages / "elsewhere_plugin-2.1.dist-info").rename(other.packages / "moved")
    other.add_distribution(
        "elsewhere-plugin", "2.2", (other.packages / "moved" / "entry_points.txt").read_text()
    )
    words = ["run", "spec.yaml", "--output", "out", "--limit", "2", "--allow-code"]
    again = command_line(*words, "--retry-failed")
    assert again.returncode == 2
    assert "engine.version was '2.1', now '2.2'" in again.stderr


@dataclass(slots=True)
class Serving(Mock):
    """Asks a server which model it has."""

    key: str | None = secret()

    def default_model(self) -> str:
        return f"served with {self.key}"


class Answering:
    """A session of another environment, as far as keys of answers need it."""

    def __init__(self, runtime: str):
        self.environment = Environment({"a-package": "1"}, {"engine": "1", "runtime": runtime})


def test_answers_of_other_versions_have_other_keys() -> None:
    keys: set[bytes] = set()
    for runtime in ("7.0", "7.0", "7.1"):
        engine = parse_engine(MOCK)
        holder = SessionHolder(engine, Model("m"), None, {}, isolate=False)
        holder._session = Answering(runtime)  # pyright: ignore
        record: dict[str, Any] = {"identity": {}, "execution": {}, "tokenizer": None}
        software = holder.read_environment().software
        keys.add(make_run_answer_base(engine, Model("m"), record, software).digest)
    assert len(keys) == 2
    assert read_environment(parse_engine(MOCK)).versions["python"] == sys.version.split()[0]


def test_engine_is_declared_as_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def answer(python: Path, module: str, question: Any) -> Any:
        asked.append((python, module))
        facts: dict[str, Any] = {}
        for line in answer_question(json.loads(json.dumps(question))):
            facts |= json.loads(json.dumps(line))
        return facts

    monkeypatch.setattr("evalution.workers.interpreter.ask_interpreter", answer)
    engine = declare_engine(MOCK, {"max_model_len": 99}, python="some/python")
    own = parse_engine({"kind": MOCK, "params": {"max_model_len": 99}})
    assert asked == [(Path.cwd() / "some" / "python", "evalution.workers.declaration")]
    assert repr(engine) == repr(own)
    assert engine == declare_engine(MOCK, {"max_model_len": 99}, python="some/python")
    assert isinstance(engine, BaseEngine)
    assert engine.to_dict() == {**own.to_dict(), "python": str(Path.cwd() / "some" / "python")}
    assert numeric_options(engine) == numeric_options(own)
    assert engine.capabilities == own.capabilities - {Capability.ATTACH}
    assert engine.default_model() is None
    serving = declare_engine(f"{__name__}:Serving", {"key": "hunter2-hunter2"}, python="python")
    assert serving.default_model() == "served with hunter2-hunter2"
    assert serving.to_dict()["key"] == "***"
    assert "hunter2" not in repr(serving)
    for options in ({"max_model": 1}, {"max_model_len": 0}, {"tests": 1}):
        with pytest.raises(ConfigurationError) as here:
            parse_engine({"kind": MOCK, "params": options})
        with pytest.raises(ConfigurationError) as there:
            declare_engine(MOCK, options, python="some/python")
        assert str(there.value) == str(here.value)
    with pytest.raises(UnknownEngineError, match=r"some/python: engine 'json:no\.here' \(json:no"):
        declare_engine("json:no.here", {}, python="some/python")
    with pytest.raises(ConfigurationError, match="not JSON serializable"):
        declare_engine(MOCK, {"max_model_len": object()}, python="some/python")


def test_engine_that_is_missing_or_dies_there_is_one_sentence(
    other: Venv, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        UnknownEngineError,
        match=rf"{other.python}: no engine 'Elswhere' is installed; did you mean 'Elsewhere'\?",
    ):
        declare_engine("Elswhere", {}, python=other.python)
    died = {"error": "it crashed with SIGSEGV during its import"}
    monkeypatch.setattr("evalution.workers.interpreter.ask_interpreter", lambda *_: died)
    with pytest.raises(EngineUnavailableError, match="/python: engine 'Mock': it crashed with SIG"):
        declare_engine("Mock", {}, python="python")


def test_interpreter_that_will_not_do_is_one_sentence(tmp_path: Path) -> None:
    def refuse(python: Path, message: str) -> None:
        with pytest.raises(ConfigurationError) as raised:
            declare_engine(MOCK, {}, python=python)
        assert message in str(raised.value)
        assert str(python) in str(raised.value)

    bare = Venv(tmp_path / "env")
    refuse(tmp_path / "none", "can't be run (No such file or directory); name the interpreter of")
    refuse(tmp_path / "env", f"is a folder; name the interpreter in it, such as {bare.python}")
    (tmp_path / "text").write_text("#!/bin/sh\necho no snake here >&2; exit 3\n")
    (tmp_path / "text").chmod(0o755)
    refuse(tmp_path / "text", "is no Python interpreter: it ended the process with status 3 during")
    refuse(bare.python, f"has no Evalution; {bare.python} -m pip install {BOTH}")
    bare.add_distribution("evalution-runner", "0.0.1")
    bare.add_distribution("evalution-core", "0.0.2")
    refuse(
        bare.python,
        f"has evalution-runner==0.0.1 evalution-core==0.0.2, and this program {BOTH}; "
        f"{bare.python} -m pip install {BOTH}",
    )
    old = "import sys; sys.version_info = (3, 8, 1)"
    (bare.packages / "sitecustomize.py").write_text(old)
    refuse(bare.python, "is Python 3.8.1, and Evalution needs 3.11 or newer")


def test_worker_of_other_versions_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-c", "0.0.1", "0.0.2"])
    with pytest.raises(SystemExit, match=r"has evalution-runner .*, its parent has .*0\.0\.1"):
        child.main()


def test_doctor_runs_there(
    other: Venv, command_line: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    done = command_line("doctor", "sglang", "--python", str(other.python))
    assert done.returncode == 1
    assert f"({other.python})" in capfd.readouterr().out
    done = command_line("doctor", "--python", str(other.packages))
    assert done.returncode == 2
    assert "is a folder" in done.stderr


def test_place_of_the_key(command_line: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="must be the path of another environment's inter"):
        parse_engine({"type": MOCK, "python": 3})
    with pytest.raises(
        ConfigurationError,
        match="no environment of its own: python stands beside the type Replicas",
    ):
        Replicas.from_options({"engine": {"type": MOCK, "python": "p"}, "replicas": 1})
    shown = command_line("engines", "reference", "--json").stdout
    assert (
        "Interpreter of another environment"
        in (json.loads(shown)["options_schema"]["properties"]["python"]["description"])
    )
