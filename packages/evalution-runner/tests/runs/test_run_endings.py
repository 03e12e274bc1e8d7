"""How a run ends: what is kept and reported, and that only a good end looks like one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution import Generation, Run
from evalution.runs.options import RunOptions
from evalution.samples_file import SamplesReader
from evalution_core import ConfigurationError, EngineRuntimeError
from evalution_enginekit.mock import Mock

ROWS = [{"q": f"{i} + 0?", "a": "4"} for i in range(6)]


def generation(**options: Any) -> Generation:
    return Generation(**{"data": ROWS, "prompt": "q", "target": "a", **options})


def results_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def test_failed_build_can_be_tried_again(
    scripted: Any, scripted_session: Any, tmp_path: Path
) -> None:
    engine = scripted(scripted_session(), [ConfigurationError("no such weights")])
    handle = Run(engine, "m", RunOptions(output=tmp_path / "run"))
    with pytest.raises(ConfigurationError, match="no such weights"):
        handle.run(generation())
    assert not (tmp_path / "run").exists()
    handle.run(generation()).close()
    assert results_of(tmp_path / "run")["status"] == "done"


def test_ctrl_c_keeps_what_was_finished_and_closes(
    scripted: Any, scripted_session: Any, tmp_path: Path
) -> None:
    def interrupted(events: Any) -> Iterator[Any]:
        for count, event in enumerate(events):
            if count == 2:
                raise KeyboardInterrupt
            yield event

    session = scripted_session(interrupted)
    handle = Run(scripted(session), "m", RunOptions(output=tmp_path / "run"))
    with pytest.raises(KeyboardInterrupt):
        handle.run(generation())
    assert session.calls == ["close"]
    assert results_of(tmp_path / "run")["status"] == "interrupted"
    assert len(SamplesReader(tmp_path / "run" / "samples.jsonl").of("rows")) == 2


def test_crash_keeps_the_suites_before_it(
    scripted: Any, scripted_session: Any, tmp_path: Path
) -> None:
    session = scripted_session()

    def crash(events: Any) -> Any:
        raise RuntimeError("boom")

    handle = Run(scripted(session), "m", RunOptions(output=tmp_path / "run")).run(
        generation(name="first")
    )
    session.script = crash
    with pytest.raises(EngineRuntimeError, match="suite 'second': RuntimeError: boom"):
        handle.run(generation(name="second"))
    found = results_of(tmp_path / "run")
    assert [suite["name"] for suite in found["suites"]] == ["first"]
    assert found["status"] == "failed"
    assert found["error"] == {
        "suite": "second",
        "type": "EngineRuntimeError",
        "message": "suite 'second': RuntimeError: boom",
    }


def test_run_that_the_caller_broke_off_is_no_success(
    scripted: Any, scripted_session: Any, tmp_path: Path
) -> None:
    def break_off() -> None:
        with Run(scripted(scripted_session()), "m", RunOptions(output=tmp_path / "run")) as handle:
            handle.run(generation())
            raise ZeroDivisionError("the caller's")

    with pytest.raises(ZeroDivisionError, match="the caller's"):
        break_off()
    found = results_of(tmp_path / "run")
    assert (found["status"], found["error"]["message"]) == ("failed", "the caller's")


def test_run_that_was_never_used_is_over_when_closed() -> None:
    handle = Mock().model(path="m")
    handle.close()
    assert isinstance(handle, Run)
    assert handle.result.status == "done"


def test_load_that_failed_is_in_the_result(scripted: Any, scripted_session: Any) -> None:
    handle = Run(scripted(scripted_session(), [RuntimeError("no weights")]), "m")
    with pytest.raises(EngineRuntimeError, match="no weights"):
        handle.run(generation())
    assert handle.result.status == "failed"
    handle.run(generation()).close()
    assert (handle.result.status, handle.result.error) == ("done", None)


def test_first_error_wins_when_closing_fails_too(
    scripted: Any, scripted_session: Any, tmp_path: Path
) -> None:
    class Stubborn(scripted_session):
        def close(self) -> None:
            raise RuntimeError("close failed")

    def crash(events: Any) -> Any:
        raise RuntimeError("boom")

    with pytest.raises(EngineRuntimeError, match="boom") as caught:
        evalution.run(
            engine=scripted(Stubborn(crash)),
            model="m",
            tests=[generation()],
            output=tmp_path / "run",
        )
    assert [note for note in caught.value.__notes__ if "close failed" in note]
    assert results_of(tmp_path / "run")["error"]["message"] == "suite 'rows': RuntimeError: boom"


def test_close_that_fails_after_all_suites_is_reported(
    scripted: Any, scripted_session: Any, tmp_path: Path
) -> None:
    class Stubborn(scripted_session):
        def close(self) -> None:
            raise RuntimeError("close failed")

    with pytest.raises(EngineRuntimeError, match="close: RuntimeError: close failed"):
        evalution.run(
            engine=scripted(Stubborn()), model="m", tests=[generation()], output=tmp_path / "run"
        )
    found = results_of(tmp_path / "run")
    assert (found["status"], len(found["suites"])) == ("failed", 1)
