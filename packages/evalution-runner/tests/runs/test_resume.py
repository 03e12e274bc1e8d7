"""A run that ended early goes on where it was: nothing twice, nothing lost, the same results."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution import Generation, MultipleChoice, Run
from evalution.journal.store import Journal
from evalution.progress import Progress
from evalution.runs.options import RunOptions, TooManyFailuresError
from evalution.runs.reader import read_run
from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    InvalidRequestError,
    Model,
    RequestFailure,
)
from evalution_enginekit import ByteTokenizer, ChatTemplate
from evalution_enginekit.mock import Mock

ROWS = [{"q": f"{i} + 0?", "a": "4", "choices": ["x", "yy"], "right": 0} for i in range(10)]


def suites(**options: Any) -> list[Any]:
    return [
        Generation(data=ROWS, prompt="q", target="a", name="sums", **options),
        MultipleChoice(data=ROWS, prompt="q", choices="choices", target="right", name="choice"),
    ]


def files(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The results without timings, and the samples."""
    found = json.loads((folder / "results.json").read_bytes())
    for part in (found, *found["suites"]):
        del part["timings"]
    return found, (folder / "samples.jsonl").read_bytes()


@pytest.fixture
def counted(scripted: Any, scripted_session: Any) -> Any:
    """Engines whose sessions count what they compute, and die after so many answers."""

    class Counted:
        def __init__(self) -> None:
            self.computed: list[Any] = []

        def engine(self, dies_after: int | None = None, failing: tuple[int, ...] = ()) -> Any:
            def script(events: Any) -> Iterator[Any]:
                for key, answer in events:
                    if dies_after is not None and len(self.computed) == dies_after:
                        raise RuntimeError("device lost")
                    self.computed.append(key)
                    is_bad = key[0] in failing
                    yield key, RequestFailure(InvalidRequestError("no")) if is_bad else answer

            return scripted(scripted_session(script))

    return Counted()


@pytest.mark.parametrize("dies_after", [0, 1, 5, 10, 11, 20, 29])
def test_unfinished_run_goes_on_and_ends_as_if_it_had_never_stopped(
    counted: Any, tmp_path: Path, dies_after: int
) -> None:
    evalution.run(engine=counted.engine(), model="m", tests=suites(), output=tmp_path / "whole")
    counted.computed.clear()
    with pytest.raises(EngineRuntimeError, match="device lost"):
        evalution.run(
            engine=counted.engine(dies_after), model="m", tests=suites(), output=tmp_path / "run"
        )
    result = evalution.run(
        engine=counted.engine(), model="m", tests=suites(), output=tmp_path / "run"
    )
    assert len(counted.computed) == 30
    assert sum(suite.cached for suite in result.suites) == dies_after
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_links_in_a_folder_of_somebody_else_are_not_written_through(
    counted: Any, tmp_path: Path
) -> None:
    run, others = tmp_path / "run", tmp_path / "others"
    with pytest.raises(EngineRuntimeError, match="device lost"):
        evalution.run(engine=counted.engine(5), model="m", tests=suites(), output=run)
    others.mkdir()
    names = ("samples.jsonl", "samples.part", "samples.index", "samples.index-journal")
    for name in (*names, "results.json.part", "progress.part"):
        (others / name).write_text("precious")
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(others / name)
    evalution.run(engine=counted.engine(), model="m", tests=suites(), output=run)
    assert {file.read_text() for file in others.iterdir()} == {"precious"}
    assert len(read_run(run).suites[0].samples) == 10


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"text"', b'"texu"'),
        (b'{"generation"', b'{"generatinn"'),
        (b"}}", b',"tokent":1}}'),
        (b"{", b"z"),
    ],
)
def test_damaged_answer_is_computed_again(
    counted: Any, tmp_path: Path, old: bytes, new: bytes
) -> None:
    evalution.run(engine=counted.engine(), model="m", tests=suites(), output=tmp_path / "whole")
    counted.computed.clear()
    with pytest.raises(EngineRuntimeError, match="device lost"):
        evalution.run(engine=counted.engine(5), model="m", tests=suites(), output=tmp_path / "run")
    with closing(
        sqlite3.connect(tmp_path / "run" / "journal.sqlite", isolation_level=None)
    ) as file:
        (found,) = file.execute("SELECT answer FROM answers WHERE row = 2").fetchone()
        damaged = found.partition(b"\n")[0].replace(old, new, 1)  # as if no checksum had shown it
        assert old in found
        file.execute("UPDATE answers SET answer = ? WHERE row = 2", (damaged,))
    result = evalution.run(
        engine=counted.engine(), model="m", tests=suites(), output=tmp_path / "run"
    )
    assert len(counted.computed) == 31
    assert sum(suite.cached for suite in result.suites) == 4
    assert files(tmp_path / "run") == files(tmp_path / "whole")


@pytest.mark.parametrize("value", ["null", "1", "[]", '"x"', "NaN"])
def test_declared_run_that_is_none_is_refused(counted: Any, tmp_path: Path, value: str) -> None:
    folder = tmp_path / "run"
    with pytest.raises(EngineRuntimeError):
        evalution.run(engine=counted.engine(5), model="m", tests=suites(), output=folder)
    with closing(sqlite3.connect(folder / "journal.sqlite", isolation_level=None)) as file:
        file.execute("UPDATE declared SET value = ? WHERE section = 'run'", (value,))
    with pytest.raises(ConfigurationError, match=r"holds a run of another spec: run was .*--fresh"):
        evalution.run(engine=Mock(), model="m", tests=suites(), output=folder)


def test_failed_request_is_finished_work(counted: Any, tmp_path: Path) -> None:
    engine = counted.engine(dies_after=15, failing=(2,))
    with pytest.raises(EngineRuntimeError, match="device lost"):
        evalution.run(engine=engine, model="m", tests=suites(), output=tmp_path)
    result = evalution.run(engine=counted.engine(), model="m", tests=suites(), output=tmp_path)
    assert (result["sums"].failed, len(counted.computed)) == (1, 30)
    assert result["sums"].first_failure == "row 2: InvalidRequestError: no"


def test_failed_requests_are_asked_again_where_that_is_wanted(counted: Any, tmp_path: Path) -> None:
    engine = counted.engine(failing=(2, 7))
    evalution.run(engine=engine, model="m", tests=suites(), output=tmp_path)
    counted.computed.clear()
    result = evalution.run(
        engine=counted.engine(), model="m", tests=suites(), output=tmp_path, retry_failed=True
    )
    assert sorted(counted.computed) == [(2, 0), (2, 0), (2, 1), (7, 0), (7, 0), (7, 1)]
    assert (result.failed, result.status) == (0, "done")


def test_run_that_bore_too_many_failures_goes_on_with_them_asked_again(
    counted: Any, tmp_path: Path
) -> None:
    with pytest.raises(TooManyFailuresError, match="1 samples failed, and max_failures is 0"):
        evalution.run(
            engine=counted.engine(failing=(2,)),
            model="m",
            tests=suites(),
            output=tmp_path,
            max_failures=0,
        )
    result = evalution.run(
        engine=counted.engine(),
        model="m",
        tests=suites(),
        output=tmp_path,
        max_failures=0,
        retry_failed=True,
    )
    assert (result.failed, len(counted.computed)) == (0, 31)


def test_finished_run_is_repeated_without_a_request(counted: Any, tmp_path: Path) -> None:
    runs = [
        evalution.run(engine=counted.engine(), model="m", tests=suites(), output=tmp_path / "run")
        for _ in range(2)
    ]
    assert len(counted.computed) == 30
    first, again = ([suite.metrics for suite in run.suites] for run in runs)
    assert first == again


def test_scores_that_changed_rows_replace_are_a_notice(counted: Any, tmp_path: Path) -> None:
    def run(rows: list[dict[str, Any]], **options: Any) -> list[str]:
        suite = Generation(data=make_file(rows), prompt="q", target="a", name="sums")
        engine = counted.engine()
        output = tmp_path / "run"
        return evalution.run(
            engine=engine, model="m", tests=[suite], output=output, **options
        ).notices

    def make_file(rows: list[dict[str, Any]]) -> str:
        (file := tmp_path / "rows.json").write_text(json.dumps(rows))
        return str(file)

    first = run(ROWS)
    assert run(ROWS) == first
    (notice,) = set(run([*ROWS[:8], {**ROWS[8], "a": "ok"}])) - set(first)
    assert notice == (
        f"sums: the scores of the finished run in {tmp_path / 'run'} were others and are replaced; "
        "since then its rows, judge, software or device changed, and 0 of 9 requests were asked "
        "again"
    )
    (notice,) = set(run([{**ROWS[0], "q": "new"}])) - set(first)
    assert notice.endswith("and 1 of 1 requests were asked again")
    assert not set(run(ROWS, fresh=True)) - set(first)


def test_finished_run_is_left_to_suites_that_it_had(tmp_path: Path) -> None:
    evalution.run(engine=Mock(), model="m", tests=suites(), output=tmp_path)
    before = files(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        evalution.Run(Mock(), "m", evalution.RunOptions(output=tmp_path)).run(suites()[0])
    assert str(caught.value) == (
        f"{tmp_path} already holds a finished run; name another --output, or start over with "
        "--fresh"
    )
    assert files(tmp_path) == before


def test_fresh_start_that_opens_no_model_leaves_the_run_that_was_there(
    counted: Any, tmp_path: Path
) -> None:
    engine = counted.engine()
    evalution.run(engine=engine, model="m", tests=suites(), output=tmp_path)
    before = files(tmp_path)
    with pytest.raises(ConfigurationError, match="max_model_len=100000 must be between"):
        evalution.run(
            engine=evalution.engines.Reference(max_model_len=100_000),
            model="builtin:tiny", tests=suites()[:1], output=tmp_path, fresh=True,
        )  # fmt: skip
    assert files(tmp_path) == before
    evalution.run(engine=engine, model="m", tests=suites(), output=tmp_path)
    assert len(counted.computed) == 30


def test_fresh_start_leaves_nothing_of_the_run_that_was_there(counted: Any, tmp_path: Path) -> None:
    evalution.run(engine=counted.engine(), model="m", tests=suites(), output=tmp_path)
    result = evalution.run(
        engine=counted.engine(), model="m", tests=suites()[:1], output=tmp_path, fresh=True
    )
    assert (len(counted.computed), result.suites[0].cached) == (40, 0)
    assert [suite["name"] for suite in files(tmp_path)[0]["suites"]] == ["sums"]


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"model": "other"}, "run.model.path was 'm', now 'other'"),
        (
            {"model": Model("m", chat_template_kwargs={"enable_thinking": False})},
            "run.model.chat_template_kwargs.enable_thinking is False, it wasn't there",
        ),
        ({"limit": 5}, "run.limit was None, now 5"),
        ({"tests": suites(max_new_tokens=9)}, "suite sums.max_new_tokens was 256, now 9"),
        ({"tests": suites()[:1]}, "suite choice was asked for, now it isn't there"),
        ({"tests": [*suites(), *suites()]}, "suite sums-2 is asked for, it wasn't there"),
        ({"engine": Mock()}, "run.engine.name was"),
    ],
)
def test_another_spec_is_refused_with_the_difference(
    counted: Any, tmp_path: Path, change: dict[str, Any], difference: str
) -> None:
    options = {"engine": counted.engine(5), "model": "m", "tests": suites(), "output": tmp_path}
    with pytest.raises(EngineRuntimeError, match="device lost"):
        evalution.run(**options)
    before = files(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        evalution.run(**{**options, **change})
    shown = str(caught.value)
    assert shown.startswith(f"{tmp_path} holds a run of another spec: ")
    assert difference in shown
    assert shown.endswith("; name another --output, or start over with --fresh")
    assert files(tmp_path) == before


def test_run_goes_on_at_the_same_step_alone(counted: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": "m", "tests": suites(), "output": tmp_path}
    with pytest.raises(EngineRuntimeError, match="device lost"):
        evalution.run(engine=counted.engine(5), step=100, **options)
    for step, difference in ((200, "was 100, now 200"), (None, "was 100, now None")):
        with pytest.raises(ConfigurationError, match=f"another spec: run.step {difference}; "):
            evalution.run(engine=counted.engine(), step=step, **options)
    assert evalution.run(engine=counted.engine(), step=100, **options).step == 100
    assert len(counted.computed) == 30


def test_run_of_a_version_that_kept_no_step_goes_on_at_one(counted: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": "m", "tests": suites(), "output": tmp_path}
    with pytest.raises(EngineRuntimeError, match="device lost"):
        evalution.run(engine=counted.engine(5), **options)
    with pytest.raises(ConfigurationError, match=r"run\.step was None, now 100"):
        evalution.run(engine=counted.engine(), step=100, **options)
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as journal, journal:
        older = "UPDATE declared SET value = json_remove(value, '$.step') WHERE section = 'run'"
        assert journal.execute(older).rowcount == 1
    assert evalution.run(engine=counted.engine(), step=100, **options).step == 100
    assert len(counted.computed) == 30


def test_batch_size_may_change_on_the_way(counted: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": "m", "output": tmp_path}
    with pytest.raises(EngineRuntimeError, match="device lost"):
        evalution.run(engine=counted.engine(5), tests=suites(batch_size=8), **options)
    evalution.run(engine=counted.engine(), tests=suites(batch_size=2), **options)
    assert len(counted.computed) == 30


def test_handle_goes_on_suite_by_suite(counted: Any, tmp_path: Path) -> None:
    first, second = suites()
    handle = Run(counted.engine(15), "m", RunOptions(output=tmp_path)).run(first)
    with pytest.raises(EngineRuntimeError, match="device lost"):
        handle.run(second)
    with Run(counted.engine(), "m", RunOptions(output=tmp_path)) as handle:
        handle.run(first).run(second)
    assert len(counted.computed) == 30


def test_other_weights_under_the_same_name_are_refused(
    scripted: Any, scripted_session: Any, tmp_path: Path
) -> None:
    class Known(scripted_session):
        weights = "one"

        def identity(self) -> dict[str, Any]:
            return {"model.safetensors": self.weights}

    def dying(events: Any) -> Iterator[Any]:
        yield next(events)
        raise RuntimeError("device lost")

    with pytest.raises(EngineRuntimeError, match="device lost"):
        evalution.run(engine=scripted(Known(dying)), model="m", tests=suites(), output=tmp_path)
    Known.weights = "two"
    with pytest.raises(ConfigurationError) as caught:
        evalution.run(engine=scripted(Known()), model="m", tests=suites(), output=tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} holds a run of another model: model.safetensors was "
        "'one', now 'two'; name another --output, or start over with --fresh"
    )


def test_run_that_is_reported_to_stop_finishes_what_is_in_flight(
    scripted: Any, scripted_session: Any, tmp_path: Path
) -> None:
    def script(events: Any) -> Iterator[Any]:
        in_flight = [next(events), next(events), next(events)]
        assert handle.stop()
        assert not handle.stop()
        yield from in_flight
        yield from events

    handle = Run(scripted(scripted_session(script)), "m", RunOptions(output=tmp_path))
    with pytest.raises(KeyboardInterrupt):
        handle.run(suites()[0])
    assert files(tmp_path)[0]["status"] == "interrupted"
    with Run(scripted(scripted_session()), "m", RunOptions(output=tmp_path)) as again:
        assert again.run(suites()[0]).result["sums"].cached == 3


def test_nothing_runs_after_a_stop(scripted: Any, scripted_session: Any) -> None:
    ran: list[Any] = []

    def script(events: Any) -> Iterator[Any]:
        for event in events:
            ran.append(event)
            yield event

    with Run(scripted(scripted_session(script)), "m") as handle:
        assert not handle.stop()
        with pytest.raises(KeyboardInterrupt):
            handle.run(suites()[0])
    assert ran == []


def test_what_is_reported_as_finished_is_on_disk(
    scripted: Any, scripted_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalution.runs.suite_run._REPORT_S", 0.0)
    shown: list[int] = []

    class Told(Progress):
        def sample_finished(self, done: int, failed: int, running: Any) -> None:
            shown.append(committed(tmp_path / "journal.sqlite") - done)

    evalution.run(
        engine=scripted(scripted_session()),
        model="m",
        tests=suites()[:1],
        output=tmp_path,
        progress=Told(),
    )
    assert set(shown) == {0}


def committed(journal: Path) -> int:
    """Answers that another process would find after this one's death: the files as they are."""
    copy = journal.parent.parent / "copy"
    copy.mkdir(exist_ok=True)
    for name in (journal.name, f"{journal.name}-wal"):
        if (journal.parent / name).exists():
            (copy / name).write_bytes((journal.parent / name).read_bytes())
    with Journal.open(copy / journal.name) as found:
        return found.count()


def test_answer_that_can_not_be_written_down_fails_its_sample_alone(
    scripted: Any, scripted_session: Any, tmp_path: Path
) -> None:
    def script(events: Any) -> Iterator[Any]:
        for key, answer in events:
            answer.token_ids = [object()] if key == (4, 0) else None
            yield key, answer

    engine = scripted(scripted_session(script))
    result = evalution.run(engine=engine, model="m", tests=suites()[:1], output=tmp_path)
    assert (result.failed, result["sums"].n) == (1, 10)
    assert "can't be recorded" in str(result["sums"].first_failure)


def test_isolated_model_gives_the_same_results_and_goes_on_without_isolation(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"engine": Mock(), "model": "m", "tests": suites()}
    evalution.run(**options, output=tmp_path / "here")
    found = evalution.run(**options, output=tmp_path / "there", isolate=True)
    here, there = files(tmp_path / "here"), files(tmp_path / "there")
    assert here[1] == there[1]
    assert [suite["metrics"] for suite in here[0]["suites"]] == [
        suite["metrics"] for suite in there[0]["suites"]
    ]
    assert found.engine["execution"]["isolated"]


def test_run_with_variables_of_the_chat_template_goes_on_with_the_same_alone(
    counted: Any, tmp_path: Path
) -> None:
    model = Model("m", chat_template_kwargs={"enable_thinking": False})
    with pytest.raises(EngineRuntimeError, match="device lost"):
        evalution.run(engine=counted.engine(5), model=model, tests=suites(), output=tmp_path)
    other = Model("m", chat_template_kwargs={"enable_thinking": True})
    shown = "run.model.chat_template_kwargs.enable_thinking was False, now True"
    with pytest.raises(ConfigurationError, match=shown):
        evalution.run(engine=counted.engine(), model=other, tests=suites(), output=tmp_path)
    evalution.run(engine=counted.engine(), model=model, tests=suites(), output=tmp_path)
    assert len(counted.computed) == 30
    results, _ = files(tmp_path)
    assert results["model"]["chat_template_kwargs"] == {"enable_thinking": False}


def test_run_goes_on_whose_older_worker_did_not_show_its_template(tmp_path: Path) -> None:
    def run() -> list[int]:
        found = evalution.run(engine=Mock(), model="m", tests=suites(), output=tmp_path)
        return [suite.cached for suite in found.suites]

    before = run()
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        (declared,) = journal.read_declared("tokenizer").values()
        journal.declare({"tokenizer": {**declared, "chat_template": None}})
    assert run() > before


@pytest.mark.parametrize("is_lent", [False, True])
@pytest.mark.parametrize(
    ("before", "now", "shown"),
    [
        ({"tone": "low"}, {"tone": "high"}, "tone was 'low', now 'high'"),
        ({"tone": False}, {"tone": 0}, "tone was False, now 0"),
        ({"agent_token": "one"}, {"agent_token": "two"}, "chat_template_kwargs_hash was"),
    ],
)
def test_run_goes_on_only_with_the_variables_that_a_server_has_bound(
    scripted: Any,
    scripted_session: Any,
    tmp_path: Path,
    is_lent: bool,
    before: dict[str, Any],
    now: dict[str, Any],
    shown: str,
) -> None:
    """The model that is asked for has none of them: the session's tokenizer does."""

    def dying(events: Any) -> Iterator[Any]:
        yield from (next(events), next(events))
        raise RuntimeError("device lost")

    def go_on(variables: dict[str, Any], *script: Any) -> evalution.RunResult:
        session = scripted_session(*script)
        session.identity = lambda: {"model.safetensors": "one"}
        session.tokenizer = ByteTokenizer()
        session.tokenizer.chat_template = ChatTemplate("{{ tone }}", variables=variables)
        who: dict[str, Any] = {"session": session} if is_lent else {"engine": scripted(session)}
        return evalution.run(**who, model="m", tests=suites()[:1], output=tmp_path)

    with pytest.raises(EngineRuntimeError, match="device lost"):
        go_on(before, dying)
    with pytest.raises(ConfigurationError, match=f"of another model: tokenizer.*{shown}"):
        go_on(now)
    assert go_on(before)["sums"].cached == 2
