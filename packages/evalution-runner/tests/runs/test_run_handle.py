from __future__ import annotations

import gc
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution import Generation, MultipleChoice, Perplexity, Run
from evalution.progress import Progress
from evalution.runs.options import RunOptions
from evalution_core import (
    Capability,
    CheckResult,
    ConfigurationError,
    EngineRuntimeError,
    EngineUnavailableError,
    LoglikelihoodOutput,
    Model,
    RollingLoglikelihoodOutput,
    SessionClosedError,
    UnsupportedRequestError,
    secret,
)
from evalution_enginekit.mock import Mock

ROWS = [{"q": f"{i} + 0?", "a": "4", "choices": ["x", "yy"], "right": 0} for i in range(6)]


def generation(**options: Any) -> Generation:
    return Generation(**{"data": ROWS, "prompt": "q", "target": "a", **options})


def choice() -> MultipleChoice:
    return MultipleChoice(data=ROWS, prompt="q", choices="choices", target="right")


def results_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def test_run_gives_every_suite_and_closes(scripted: Any, scripted_session: Any) -> None:
    session = scripted_session()
    result = evalution.run(
        engine=scripted(session), model={"path": "m", "label": "L"}, tests=[generation(), choice()]
    )
    assert [suite.name for suite in result.suites] == ["rows", "rows-2"]
    assert result["rows-2"].type == "MultipleChoice"
    assert (result.status, result.model["label"]) == ("done", "L")
    assert session.calls == ["gc", "close"]
    with pytest.raises(KeyError, match="no suite 'other' was run"):
        result["other"]


def test_engine_runs_suites_through_its_model() -> None:
    handle = Mock().model(path="m").run(generation(name="one")).run(generation(name="two"))
    assert isinstance(handle, Run)
    assert [suite.name for suite in handle.result.suites] == ["one", "two"]
    handle.close()
    assert evalution.run is not handle.run
    assert callable(evalution.run)


def test_execution_is_logged_once_when_the_session_is_ready(
    scripted: Any, scripted_session: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Described(scripted_session):
        def describe_execution(self) -> dict[str, Any]:
            return {"backend": "scripted", "api_key": "sk-planted-key"}

    session = Described()
    with caplog.at_level(logging.INFO, "evalution"), Run(scripted(session), "m") as handle:
        assert caplog.messages == []
        handle.run(choice()).run(generation())
    (text,) = caplog.messages
    assert text.startswith('session ready: {"backend":"scripted"')
    assert "planted" not in text


def test_nothing_is_built_before_the_first_suite(scripted: Any, scripted_session: Any) -> None:
    engine = scripted(scripted_session(), [RuntimeError("built too early")])
    handle = engine.model(path="m")
    assert handle.result.status == "running"
    assert not handle.has_begun
    with pytest.raises(EngineRuntimeError, match="could not load m: RuntimeError: built too early"):
        handle.run(generation())


def test_reading_results_changes_nothing(scripted: Any, scripted_session: Any) -> None:
    session = scripted_session()
    with Run(scripted(session), "m") as handle:
        handle.run(generation())
        first = handle.result.to_dict()
        assert handle.result.to_dict() == first
        assert "close" not in session.calls
        handle.run(generation())
    assert len(handle.result.suites) == 2


def test_closed_handle_refuses_and_closing_twice_is_nothing(
    scripted: Any, scripted_session: Any
) -> None:
    session = scripted_session()
    handle = Run(scripted(session), "m").run(generation())
    handle.close()
    handle.close()
    assert session.calls == ["close"]
    with pytest.raises(SessionClosedError, match="this run is closed"):
        handle.run(generation())


def test_lent_session_stays_open(scripted_session: Any) -> None:
    session = scripted_session()
    result = evalution.run(session=session, tests=[generation()])
    assert session.calls == []
    assert result.engine["session"].endswith(":ScriptedSession")


def test_handle_that_is_dropped_frees_its_model(scripted: Any, scripted_session: Any) -> None:
    session = scripted_session()
    Run(scripted(session), "m").run(generation())
    gc.collect()
    assert session.calls == ["close"]


def test_results_grow_with_each_suite(scripted: Any, scripted_session: Any, tmp_path: Path) -> None:
    with Run(scripted(scripted_session()), "m", RunOptions(output=tmp_path / "run")) as handle:
        handle.run(generation(name="first"))
        between = results_of(tmp_path / "run")
        assert (between["status"], len(between["suites"])) == ("running", 1)
        assert between["timings"]["finished"] is None
    assert results_of(tmp_path / "run")["status"] == "done"


def test_run_folder_holds_all_of_it(tmp_path: Path) -> None:
    suites = [generation(max_new_tokens=2), choice(), Perplexity(data=ROWS, text="q", name="ppl")]
    result = evalution.run(engine=Mock(), model="m", tests=suites, output=tmp_path / "run", limit=4)
    found = results_of(tmp_path / "run")
    assert found == json.loads(json.dumps(result.to_dict()))
    assert found["schema_version"] == 1
    assert found["engine"]["name"] == "evalution_enginekit.mock:Mock"
    assert found["engine"]["distribution"] == "evalution-enginekit"
    assert found["engine"]["execution"]["self_check"] == "passed"
    assert found["engine"]["self_check"]["outcome"] == "passed"
    assert found["engine"]["identity"] == {"mock": "m"}
    assert "generate" in found["engine"]["capabilities"]
    assert set(found["scoring_policy"]) >= {"boundary", "bos", "truncation", "windows"}
    assert set(found["versions"]) >= {"python", "platform", "evalution-runner", "evalution-core"}
    assert set(found["timings"]) == {"started", "finished", "build_s", "total_s"}
    assert [suite["n"] for suite in found["suites"]] == [4, 4, 4]
    text = (tmp_path / "run" / "samples.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert {tuple(line) for line in lines} == {
        (
            *("suite", "index", "prompt", "target", "prediction", "extracted", "metrics"),
            *("tokens", "error"),
        )
    }
    assert [len(suite.samples) for suite in result.suites] == [4, 4, 4]


def test_number_that_json_cannot_hold_is_null_with_a_note(
    scripted_session: Any, tmp_path: Path
) -> None:
    class Impossible(scripted_session):
        def loglikelihood_rolling(self, requests: Any, *, batch_size: Any = None) -> list[Any]:
            return [RollingLoglikelihoodOutput(-math.inf, 1) for _ in requests]

    suite = Perplexity(data=ROWS, text="q")
    evalution.run(session=Impossible(), tests=[suite], output=tmp_path / "run")
    metric = results_of(tmp_path / "run")["suites"][0]["metrics"]["word_perplexity"]
    assert metric["value"] is None
    assert metric["note"] == "the value is inf"


def test_folder_that_holds_a_run_is_not_written_over(tmp_path: Path) -> None:
    evalution.run(engine=Mock(), model="m", tests=[choice()], output=tmp_path / "run")
    before = (tmp_path / "run" / "results.json").read_bytes()
    with pytest.raises(ConfigurationError, match="holds a run of another spec: suite "):
        evalution.run(engine=Mock(), model="m", tests=[choice()] * 2, output=tmp_path / "run")
    assert (tmp_path / "run" / "results.json").read_bytes() == before


def test_folder_that_cannot_be_made_is_reported_before_the_model_loads(
    scripted: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    engine = scripted(None, [AssertionError("the model was loaded")])
    with pytest.raises(ConfigurationError, match="can't be written: Not a directory"):
        evalution.run(engine=engine, model="m", tests=[choice()], output=tmp_path / "file" / "run")


@dataclass(slots=True)
class Narrow(Mock):
    api_key: str | None = secret()

    capabilities = frozenset({Capability.GENERATE})


def test_secrets_are_in_no_file(tmp_path: Path) -> None:
    evalution.run(
        engine=Narrow(api_key="hunter2"),
        model=Model("https://user:hunter2@host/m"),
        tests=[generation()],
        output=tmp_path / "run",
    )
    files = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    assert {"results.json", "samples.jsonl"} <= files.keys()
    assert [name for name, content in files.items() if b"hunter2" in content] == []


def test_what_an_engine_lacks_is_reported_before_it_loads(scripted: Any) -> None:
    with pytest.raises(UnsupportedRequestError) as caught:
        evalution.run(engine=Narrow(), model="m", tests=[generation(), choice()])
    assert str(caught.value) == (
        "suite 'rows' needs loglikelihood; the capabilities of engine Narrow are generate"
    )


def test_what_a_session_lacks_is_reported_before_it_works(
    scripted: Any, scripted_session: Any
) -> None:
    class Without(scripted_session):
        capabilities = frozenset({Capability.ROLLING})

    with pytest.raises(UnsupportedRequestError, match="of the model as it was loaded are rolling"):
        evalution.run(engine=scripted(Without()), model="m", tests=[generation()])


def test_why_a_session_lacks_it_is_reported(scripted: Any, scripted_session: Any) -> None:
    class Without(scripted_session):
        capabilities = frozenset({Capability.GENERATE})

        def loglikelihood(self, *_: Any, **__: Any) -> Any:
            raise UnsupportedRequestError("/v1/completions answered 404")

    shown = (
        "suite 'rows' needs loglikelihood; /v1/completions answered 404; tests that generate run "
        "on it: `type: generation`, gsm8k"
    )
    with pytest.raises(UnsupportedRequestError, match=f"^{shown}$"):
        evalution.run(engine=scripted(Without()), model="m", tests=[choice()])


def test_session_that_fails_its_check_scores_nothing(scripted: Any, scripted_session: Any) -> None:
    class Wrong(scripted_session):
        def check(self) -> CheckResult:
            return CheckResult("failed", "positions are off by one", 3.0)

    handle = Run(scripted(Wrong()), "m").run(generation())
    with pytest.raises(EngineRuntimeError, match="scores would be wrong: positions are off by one"):
        handle.run(choice())
    assert [suite.type for suite in handle.result.suites] == ["Generation"]
    assert handle.result.engine["self_check"]["outcome"] == "failed"


def test_nan_from_an_engine_is_a_failed_sample(scripted: Any, scripted_session: Any) -> None:
    class Broken(scripted_session):
        def loglikelihood(self, requests: Any, *, batch_size: Any = None) -> list[Any]:
            return [LoglikelihoodOutput(math.nan, None, 1) for _ in requests]

    result = evalution.run(engine=scripted(Broken()), model="m", tests=[choice()])
    assert (result.suites[0].failed, result.suites[0].metrics["acc"].value) == (6, 0.0)
    assert "NaN" in str(result.suites[0].first_failure)


def test_options_are_checked_again_before_the_build() -> None:
    engine = Mock()
    engine.max_model_len = "long"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigurationError, match="option 'max_model_len' of engine Mock"):
        evalution.run(engine=engine, model="m", tests=[generation()])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tests": []}, "tests must be a list with at least one suite, got []"),
        ({"tests": generation()}, "tests must be a list with at least one suite"),
        ({"tests": ["sums"]}, "a test must be a suite such as suites.Generation(…), got 'sums'"),
        ({"engine": "Mock"}, "engine must be an engine such as engines.Reference(), got 'Mock'"),
        ({"engine": None}, "a run needs an engine, or a live session"),
        ({"model": 3}, "model must be a Model, a mapping or a path, got 3"),
        ({"model": {"pth": "x"}}, "model has no field 'pth'; did you mean 'path'?"),
        ({"model": None}, "Mock knows no default model; name what it loads: a folder"),
        ({"model": "./nothing"}, "there is no model folder or file ./nothing"),
        (
            {"model": {"path": "builtin:tiny", "revision": "v2"}},
            "model.revision='v2': builtin:tiny is on this machine and has no revisions; leave it",
        ),
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"limit": 2**40}, "limit must be at most 2147483647, got 1099511627776"),
        ({"output": ""}, "output is empty; name a folder"),
        ({"output": 3}, "output must be a folder's path, got 3"),
        ({"output": "a\0b"}, "the run folder 'a\\x00b' has no possible name"),
        (
            {"engine": None, "session": "x"},
            "session must be a live session, as an engine's",
        ),
        ({"session": 0}, "session must be a live session, as an engine's build() gives it, got 0"),
        ({"limit": True}, "limit must be an int, got True"),
    ],
)
def test_wrong_argument_is_reported(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        evalution.run(**{"engine": Mock(), "model": "m", "tests": [generation()], **arguments})
    assert message in str(caught.value)


def test_session_has_its_engine_already(scripted_session: Any) -> None:
    with pytest.raises(ConfigurationError, match="name an engine or a session, not both"):
        evalution.run(engine=Mock(), session=scripted_session(), tests=[generation()])


def test_session_that_is_falsy_is_one(scripted_session: Any) -> None:
    class Empty(scripted_session):
        def __len__(self) -> int:
            return 0

    assert evalution.run(session=Empty(), tests=[generation()]).status == "done"


def test_build_must_give_a_session(scripted: Any) -> None:
    with pytest.raises(EngineRuntimeError, match="must return a BaseInferenceSession, got 'x'"):
        evalution.run(engine=scripted("x"), model="m", tests=[generation()])


def test_what_a_run_returns_has_its_results(scripted: Any, scripted_session: Any) -> None:
    found = scripted(scripted_session()).model(path="m").run(generation())
    assert found.engine["execution"] == found.result.engine["execution"]
    assert found.model["path"] == "m"
    assert found.to_dict() == found.result.to_dict()


def test_engine_of_another_contract_is_refused(scripted: Any, scripted_session: Any) -> None:
    engine = scripted(scripted_session())
    type(engine).contract = 2
    try:
        with pytest.raises(EngineUnavailableError, match="was written for contract 2"):
            Run(engine, "m")
    finally:
        del type(engine).contract


def test_progress_is_given_rows_suites_and_computed_tokens() -> None:
    heard: list[tuple[Any, ...]] = []

    class Listening(Progress):
        def suites_planned(self, totals: Sequence[int]) -> None:
            heard.append(("planned", *totals))

        def rows_checking(self, suite: str) -> None:
            heard.append(("checking", suite))

        def rows_checked(self) -> None:
            heard.append(("checked",))

        def tokens_computed(self, count: int) -> None:
            heard.append(("tokens", count))

    suites = [generation(name="one", max_new_tokens=2), choice()]
    options = RunOptions(progress=Listening(), limit=1)
    with Run(Mock(), "m", options) as handle:
        handle.prepare(suites)
        handle.run(suites[0])
    checks = [("checking", "one"), ("checked",), ("checking", "rows"), ("checked",)]
    assert heard == [*checks, ("planned", 1, 1), ("tokens", 2)]


def test_progress_ends_the_reading_of_rows_that_can_not_be_read() -> None:
    ended: list[bool] = []

    class Listening(Progress):
        def rows_checked(self) -> None:
            ended.append(True)

    with pytest.raises(ConfigurationError):
        Run(Mock(), "m", RunOptions(progress=Listening())).prepare([generation(prompt="none")])
    assert ended == [True]
