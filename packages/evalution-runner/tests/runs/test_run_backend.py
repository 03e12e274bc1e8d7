"""A run whose model somebody else prepares: attached to once, torn down once, whatever happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution.replicas import Replicas
from evalution.report import write_report
from evalution.runs.options import FailurePolicy, RunOptions, TooManyFailuresError
from evalution.runs.reader import read_run
from evalution.yaml_spec import run_spec
from evalution.yaml_spec.run_spec import load_spec
from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    EngineRuntimeError,
    InvalidRequestError,
    Model,
    RequestFailure,
    UnsupportedRequestError,
)
from evalution_core.capabilities import GUIDE_CAPABILITIES
from evalution_enginekit.mock import Mock

log: list[str] = []


class Backend:
    """Notes in `log` what happens to it."""

    def __init__(self, fails: str = "") -> None:
        log.clear()
        self.fails = fails
        self.run_dir = Path()

    @property
    def model(self) -> Model:
        return Model("in-training")

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "noting", "params": {"fails": self.fails, "api_key": "s3cret-in-params"}}

    @contextmanager
    def prepare(self, run_dir: Path) -> Generator[dict[str, Any]]:
        self.run_dir = run_dir
        log.append("prepare")
        if self.fails == "prepare":
            raise RuntimeError("the loader broke")
        (run_dir / "left.txt").write_text("x")
        try:
            yield {"weights": 1}
        finally:
            log.append("teardown")


@dataclass(slots=True)
class Attaching(BaseEngine):
    """Attaches a session that is given; `error` is what attaching ends in."""

    session: Any = None
    error: BaseException | None = None
    handles: list[Mapping[str, Any]] = field(default_factory=list)

    capabilities = GUIDE_CAPABILITIES | {Capability.ATTACH}

    def build(self, model: Model) -> BaseInferenceSession:
        raise AssertionError("nothing is loaded")

    def attach(
        self, handles: Mapping[str, Any], model: Model | None = None
    ) -> BaseInferenceSession:
        log.append("attach")
        self.handles.append(handles)
        if self.error is not None:
            raise self.error
        return self.session


@pytest.fixture
def suite(write_rows: Callable[..., str]) -> evalution.Generation:
    rows = write_rows({"question": "2 + 2?", "answer": "4"})
    return evalution.Generation(data=rows, prompt="{question}", target="answer")


def test_engine_attaches_between_prepare_and_teardown(
    scripted_session: type[Any], suite: evalution.Generation, tmp_path: Path
) -> None:
    session, backend = scripted_session(), Backend()
    engine = Attaching(session)
    folder = tmp_path / "run"
    result = evalution.run(engine=engine, backend=backend, tests=[suite, suite], output=folder)
    assert log == ["prepare", "attach", "teardown"]
    assert session.calls == ["gc", "close"]
    assert engine.handles == [{"weights": 1}]
    assert backend.run_dir == folder / "backend"
    assert result.model["path"] == "in-training"
    assert read_run(folder).model["backend"]["kind"] == "noting"
    assert "s3cret" not in (folder / "results.json").read_text()


def test_without_a_folder_it_gets_one_that_is_removed(
    scripted_session: type[Any], suite: evalution.Generation
) -> None:
    backend = Backend()
    with evalution.Run(Attaching(scripted_session()), None, RunOptions(backend=backend)) as run:
        run.run(suite)
        assert (backend.run_dir / "left.txt").exists()
    assert not backend.run_dir.exists()


@pytest.mark.parametrize(
    ("broken", "shown", "expected"),
    [
        ("prepare", "the loader broke", ["prepare"]),
        ("attach", "no such handles", ["prepare", "attach", "teardown"]),
        ("session", "must return a BaseInferenceSession", ["prepare", "attach", "teardown"]),
    ],
)
def test_run_that_can_not_begin_is_torn_down(
    broken: str, shown: str, expected: list[str], suite: evalution.Generation, tmp_path: Path
) -> None:
    error = ValueError("no such handles") if broken == "attach" else None
    engine = Attaching("no session", error)
    with pytest.raises(EngineRuntimeError, match=shown):
        evalution.run(
            engine=engine,
            backend=Backend(fails=broken),
            tests=[suite],
            output=tmp_path / "run",
        )
    assert log == expected
    assert not (tmp_path / "run" / "results.json").exists()


def test_suite_that_breaks_the_run_tears_down(
    scripted_session: type[Any], suite: evalution.Generation
) -> None:
    def broken(answers: Any) -> Any:
        raise EngineRuntimeError("the model died")

    with pytest.raises(EngineRuntimeError, match="the model died"):
        evalution.run(engine=Attaching(scripted_session(broken)), backend=Backend(), tests=[suite])
    assert log == ["prepare", "attach", "teardown"]


def test_engine_that_only_loads_models_is_refused_before_any_work(
    suite: evalution.Generation,
) -> None:
    with pytest.raises(
        UnsupportedRequestError, match="engine Replicas can't attach to a live model"
    ):
        evalution.run(engine=Replicas(Mock(), 1), backend=Backend(), tests=[suite])
    assert log == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine": None}, "a run needs an engine, or a live session"),
        ({"backend": "local"}, "backend must have model, to_dict and prepare.*got 'local'"),
        ({"isolate": True}, "isolate needs a model that the engine loads"),
        ({"model": "another"}, "a backend brings the model; name none beside it"),
    ],
)
def test_what_contradicts_a_backend_is_refused(
    arguments: dict[str, Any], message: str, suite: evalution.Generation
) -> None:
    given: dict[str, Any] = {"engine": Attaching(), "backend": Backend(), "tests": [suite]}
    with pytest.raises(ConfigurationError, match=message):
        evalution.run(**given | arguments)
    assert log == []


def test_resumed_run_must_have_the_same_backend(
    scripted_session: type[Any], suite: evalution.Generation, tmp_path: Path
) -> None:
    class Other(Backend):
        def to_dict(self) -> dict[str, Any]:
            return {"kind": "another"}

    folder = tmp_path / "run"
    with evalution.Run(
        Attaching(scripted_session()), None, RunOptions(backend=Backend(), output=folder)
    ) as run:
        run.run(suite)
        run.result.status = "failed"
    with pytest.raises(ConfigurationError, match=r"backend\.kind was .noting., now .another."):
        evalution.run(
            engine=Attaching(scripted_session()), backend=Other(), tests=[suite], output=folder
        )


def dying(events: Any) -> Any:
    yield next(events)
    raise EngineRuntimeError("the model died")


@pytest.mark.parametrize("is_given", [True, False])
def test_answers_of_a_live_model_are_not_taken_up_again(
    scripted_session: type[Any], suite: evalution.Generation, tmp_path: Path, is_given: bool
) -> None:
    def run(session: Any, **options: Any) -> evalution.RunResult:
        live: dict[str, Any] = {"session": session}
        if not is_given:
            live = {"engine": Attaching(session), "backend": Backend()}
        return evalution.run(tests=[suite], output=tmp_path / "run", step=1, **live, **options)

    with pytest.raises(EngineRuntimeError, match="the model died"):
        run(scripted_session(dying))
    before = (tmp_path / "run" / "samples.jsonl").read_bytes()
    for options in ({}, {"retry_failed": True}):
        with pytest.raises(ConfigurationError) as caught:
            run(scripted_session(), **options)
        assert str(caught.value) == (
            f"{tmp_path / 'run'} holds answers of a live model; its weights may have changed "
            "since, so they can't be taken up again: name another --output, or start over with "
            "--fresh"
        )
    assert (tmp_path / "run" / "samples.jsonl").read_bytes() == before
    assert run(scripted_session(), fresh=True).suites[0].cached == 0


@pytest.mark.parametrize("has_died", ["without an answer", "known by content"])
def test_run_of_a_live_model_goes_on_where_no_answer_can_be_stale(
    scripted_session: type[Any], suite: evalution.Generation, tmp_path: Path, has_died: str
) -> None:
    is_known = has_died == "known by content"

    class Live(scripted_session):
        def identity(self) -> dict[str, Any] | None:
            return {"weights": "one"} if is_known else None

    def at_once(events: Any) -> Any:
        raise EngineRuntimeError("the model died")

    with pytest.raises(EngineRuntimeError, match="the model died"):
        evalution.run(session=Live(dying if is_known else at_once), tests=[suite], output=tmp_path)
    again = evalution.run(session=Live(), tests=[suite], output=tmp_path)
    assert (again.status, again.suites[0].cached) == ("done", int(is_known))


def test_handle_of_a_live_model_goes_on_after_a_suite_that_failed(
    scripted_session: type[Any], write_rows: Callable[..., str], tmp_path: Path
) -> None:
    refusals = [RequestFailure(InvalidRequestError("busy"))]

    def script(events: Any) -> Any:
        for key, answer in events:
            yield key, refusals.pop() if refusals and key[0] == 1 else answer

    rows = write_rows({"q": "a", "a": "4"}, {"q": "b", "a": "4"})
    suite = evalution.Generation(data=rows, prompt="q", target="a")
    options = RunOptions(
        output=tmp_path / "run", failures=FailurePolicy("raise"), retry_failed=True
    )
    with evalution.Run(None, None, options, session=scripted_session(script)) as handle:
        with pytest.raises(TooManyFailuresError, match="busy"):
            handle.run(suite)
        found = handle.run(suite).result["rows"]
    assert (found.n, found.cached, found.failed) == (2, 1, 0)
    assert [sample.index for sample in found.stored_samples or ()] == [0, 1]


def test_without_the_package_a_spec_says_what_to_install(
    folder: Path, spec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_spec.BACKENDS, "entries", list)
    name = spec(folder, rest="backend: {kind: local}\n")
    with pytest.raises(ConfigurationError, match="pip install evalution-training"):
        load_spec(str(folder / name))


@pytest.mark.parametrize("step", [-1, 1.5, True])
def test_step_is_a_count(step: Any, scripted_session: type[Any]) -> None:
    with pytest.raises(ConfigurationError, match="step must "):
        RunOptions(step=step)


def test_step_of_each_run_is_in_the_report(
    scripted_session: type[Any], suite: evalution.Generation, tmp_path: Path
) -> None:
    folders = []
    for step in (100, 0, 50):
        folder = tmp_path / f"step-{step}"
        evalution.run(session=scripted_session(), tests=[suite], output=folder, step=step)
        folders.append(folder)
    page = write_report([*map(read_run, folders)], tmp_path / "report.html").path.read_text("utf-8")
    found = json.loads(page.partition('id="documents">')[2].partition("</script>")[0])
    assert [one["step"] for one in found["details"].values()] == [100, 0, 50]
    assert [one["scores"][0]["value"] for one in found["runs"]["runs"]] == [1.0, 1.0, 1.0]
