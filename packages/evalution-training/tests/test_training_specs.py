"""A spec with `backend:` runs through the runner's own command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

cli: Any = pytest.importorskip("evalution.cli", reason="the runner isn't installed")
testing: Any = pytest.importorskip("typer.testing", reason="the runner isn't installed")

ENGINE = '''
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evalution_core import BaseEngine, Capability, ConfigurationError, Model
from evalution_core.capabilities import GUIDE_CAPABILITIES
from evalution_enginekit.mock import Mock


@dataclass(slots=True)
class Attaching(BaseEngine):
    """Takes the handles of the backend `mock`."""

    fails: bool = False

    capabilities = GUIDE_CAPABILITIES | {Capability.ATTACH}

    def build(self, model: Model) -> Any:
        raise AssertionError("nothing is loaded")

    def attach(self, handles: Mapping[str, Any], model: Model | None = None) -> Any:
        print("attached to", handles["model"]["name"], "for", model.path)
        if self.fails:
            raise ConfigurationError("attach needs other handles")
        return Mock().build(Model("m"))
'''
BACKEND = """
from evalution_training.backends.mock import MockBackend


class Loud(MockBackend):
    def teardown(self, handles):
        print("torn down", sorted(handles))
"""
DYING = """
from dataclasses import dataclass

from evalution_enginekit.mock import Mock, MockSession


class Session(MockSession):
    def identity(self):
        return None

    def generate_continuous(self, requests, *, batch_size=None):
        yield from super().generate_continuous(requests, batch_size=batch_size)
        raise RuntimeError("device lost")


@dataclass(slots=True)
class Dying(Mock):
    def attach(self, handles, model=None):
        return Session("m", 512, 2)
"""
SPEC = """
engine: {engine}
backend: {backend}
model: {model}
tests:
  - {{type: generation, data: rows.jsonl, prompt: question, target: answer}}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a command of the runner on a spec of these sections."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_plugin_engine.py").write_text(ENGINE)
    (tmp_path / "a_plugin_backend.py").write_text(BACKEND)
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')

    def call(
        *command: str,
        engine: str = "{type: 'a_plugin_engine:Attaching'}",
        backend: str = "{kind: 'a_plugin_backend:Loud'}",
        model: str = "{name: org/m, renderer_name: chatml}",
    ) -> Any:
        text = SPEC.format(engine=engine, backend=backend, model=model)
        (tmp_path / "spec.yaml").write_text(text)
        first, *rest = command or ("run",)
        extra = ["--output", "out"] if first == "run" else []
        return testing.CliRunner().invoke(
            cli.app, [first, "spec.yaml", "--allow-code", *rest, *extra]
        )

    return call


def test_a_spec_is_prepared_attached_to_and_torn_down(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    done = run()
    assert done.exit_code == 0, done.output
    assert "attached to org/m for org/m" in done.stdout
    assert "torn down ['backend', 'model', 'run_dir']" in done.stdout
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["model"]["path"] == "org/m"
    assert found["model"]["backend"] == {
        "kind": "a_plugin_backend:Loud",
        "params": {},
        "model": {"name": "org/m", "renderer_name": "chatml"},
    }


def test_a_run_of_a_live_model_that_died_offers_no_resuming(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "a_dying_engine.py").write_text(DYING)
    done = run(engine="{type: 'a_dying_engine:Dying'}")
    assert (done.exit_code, "device lost" in done.stderr) == (1, True)
    assert "results: out" in done.stdout
    assert "to resume" not in done.stdout
    again = run(engine="{type: 'a_dying_engine:Dying'}")
    assert (again.exit_code, again.stdout.count("torn down")) == (2, 1)
    assert "out holds answers of a live model; its weights may have changed" in again.stderr


def test_mock_backend_runs_with_the_mock_engine(run: Callable[..., Any], tmp_path: Path) -> None:
    engine = "{type: 'evalution_enginekit.mock:Mock'}"
    done = run(engine=engine, backend="{kind: mock}", model="org/m")
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (found["status"], found["suites"][0]["n"]) == ("done", 1)
    assert found["model"]["backend"]["kind"] == "mock"


def test_model_may_be_a_name(run: Callable[..., Any]) -> None:
    done = run(model="org/m")
    assert "attached to org/m for org/m" in done.stdout, done.output


def test_handles_of_another_kind_are_torn_down_after(run: Callable[..., Any]) -> None:
    done = run(engine="{type: 'a_plugin_engine:Attaching', fails: true}")
    assert (done.exit_code, "attach needs other handles" in done.stderr) == (2, True)
    assert done.stdout.count("torn down") == 1


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"backend": "{kind: mokc}"}, "no backend 'mokc' is installed; did you mean 'mock'?"),
        (
            {"backend": "{kind: mock, params: {fail_on_prepar: true}}"},
            "backend 'mock' has no param 'fail_on_prepar'; did you mean 'fail_on_prepare'?",
        ),
        ({"backend": "{kind: local, params: {dtype: int4}}"}, "param 'dtype' of backend 'local'"),
        ({"backend": "{params: {}}"}, "the backend names no type (it has: params)"),
        ({"model": "{nmae: org/m}"}, "model has no field 'nmae'; did you mean 'name'?"),
        ({"model": "null"}, "a backend needs the model's name"),
        (
            {"engine": "Reference"},
            "engine Reference can't attach to a live model, which a run with a backend needs",
        ),
        (
            {"backend": "{kind: mock}\nagainst: {engine: Reference}"},
            "the section 'against' needs models that engines load; take out 'backend'",
        ),
        ({"backend": "{kind: mock}\nisolate: true"}, "the section 'isolate' needs models"),
    ],
)
@pytest.mark.parametrize("command", ["validate", "run"])
def test_wrong_spec_is_refused_before_preparation(
    run: Callable[..., Any], command: str, sections: dict[str, str], message: str, tmp_path: Path
) -> None:
    done = run(command, **sections)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_failing_prepare_ends_the_run(run: Callable[..., Any], tmp_path: Path) -> None:
    done = run(backend="{kind: mock, params: {fail_on_prepare: true}}")
    assert done.exit_code == 1
    assert "backend 'mock' was asked to fail (fail_on_prepare)" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_schema_for_editors_takes_a_spec_with_a_backend() -> None:
    jsonschema: Any = pytest.importorskip("jsonschema", reason="jsonschema isn't installed")
    schema: Any = pytest.importorskip(
        "evalution.yaml_spec.schema", reason="the runner is not installed"
    )
    test = {"type": "generation", "data": "r", "prompt": "q", "target": "a"}
    spec: dict[str, Any] = {"engine": "Reference", "tests": [test]}
    spec |= {
        "backend": {"kind": "mock", "params": {}},
        "model": {"name": "m", "renderer_name": "x"},
    }
    jsonschema.Draft202012Validator(schema.make_spec_schema().schema).validate(spec)
