from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution.results import SCHEMA_VERSION, MetricResult, RowRange, RunResult, to_json
from evalution.runs.options import RunOptions
from evalution.runs.reader import read_run
from evalution_core import ConfigurationError, EngineRuntimeError
from evalution_enginekit.mock import Mock

ROWS = [{"question": f"{n} + 1?", "answer": "2", "text": "some words"} for n in range(4)]


def suites() -> list[Any]:
    return [
        evalution.Generation(data=ROWS, name="sums", prompt="question", target="answer"),
        evalution.Perplexity(data=ROWS, name="prose", text="text"),
    ]


@pytest.fixture
def run(tmp_path: Path) -> RunResult:
    return evalution.run(engine=Mock(), model="m", tests=suites(), output=tmp_path / "run")


def rewritten(run: RunResult, change: Callable[[dict[str, Any]], object]) -> Path:
    assert run.folder is not None
    file = run.folder / "results.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    change(document)
    file.write_text(json.dumps(document), encoding="utf-8")
    return run.folder


def without_rates(document: Any) -> Any:
    """All but the rates, which are of seconds with more digits than are written."""
    if isinstance(document, list):
        return [without_rates(member) for member in document]
    if isinstance(document, dict):
        names = [name for name in document if name != "requests_per_second"]
        return {name: without_rates(document[name]) for name in names}
    return document


@pytest.mark.parametrize("name", ["run", "run/results.json"])
def test_run_is_read_as_it_was(run: RunResult, tmp_path: Path, name: str) -> None:
    found = read_run(tmp_path / name)
    written = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    assert without_rates(found.to_dict()) == without_rates(written)
    assert found.status == "done"
    assert found.folder == tmp_path / "run"
    assert found["sums"].samples == run["sums"].samples
    assert [sample.index for sample in found["prose"].samples] == [0, 1, 2, 3]


def test_home_folder_may_be_written_as_a_tilde(
    run: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert read_run("~/run")["sums"].n == 4


def test_infinite_score_is_infinite_again(run: RunResult) -> None:
    run["prose"].metrics = {"word_perplexity": MetricResult(math.inf, None, False, 4)}
    written = run.to_dict()

    def change(document: dict[str, Any]) -> None:
        shown = written["suites"][1]["metrics"]["word_perplexity"]
        document["suites"][1]["metrics"] = {"word_perplexity": {**shown, "value": None}}

    found = read_run(rewritten(run, change))
    assert found["prose"].metrics["word_perplexity"].value == math.inf


@pytest.mark.parametrize("row_range", [None, (0.0, 1.0), (-5.0, None), (None, None)])
def test_range_of_rows_is_read_as_it_was_written(
    run: RunResult, row_range: RowRange | None
) -> None:
    run["sums"].metrics = {"acc": MetricResult(0.5, None, True, 4, row_range=row_range)}
    written = json.loads(to_json(run.to_dict()))["suites"][0]["metrics"]

    def change(document: dict[str, Any]) -> None:
        document["suites"][0]["metrics"] = written

    assert read_run(rewritten(run, change))["sums"].metrics["acc"].row_range == row_range
    del written["acc"]["row_range"]  # as a result that is older than the field
    assert read_run(rewritten(run, change))["sums"].metrics["acc"].row_range == "unknown"


def test_what_a_later_writer_adds_to_the_schema_is_left_alone(run: RunResult) -> None:
    def change(document: dict[str, Any]) -> None:
        document["colour"] = document["suites"][0]["colour"] = "red"

    assert read_run(rewritten(run, change))["sums"].n == 4


def test_unfinished_run_is_read_up_to_where_it_is(
    tmp_path: Path, scripted: Any, scripted_session: Any
) -> None:
    def dying(answers: Any) -> Any:
        yield next(answers)
        raise EngineRuntimeError("the runtime died")

    folder = tmp_path / "run"
    engine = scripted(scripted_session())
    handle = evalution.Run(engine, "m", RunOptions(output=folder))
    handle.run(suites()[1])
    assert read_run(folder).status == "running"
    engine.session.script = dying
    with pytest.raises(EngineRuntimeError, match="the runtime died"):
        handle.run(suites()[0])
    found = read_run(folder)
    assert found.status == "failed"
    assert found.error == {
        "suite": "sums",
        "type": "EngineRuntimeError",
        "message": "the runtime died",
    }
    assert [suite.name for suite in found.suites] == ["prose"]
    assert len(found["prose"].samples) == 4


def test_samples_are_read_when_they_are_asked_for(run: RunResult, tmp_path: Path) -> None:
    samples = tmp_path / "run" / "samples.jsonl"
    text = samples.read_text(encoding="utf-8")
    samples.write_text("damaged\n", encoding="utf-8")
    found = read_run(tmp_path / "run")
    with pytest.raises(ConfigurationError) as caught:
        _ = found["sums"].samples
    assert f"{samples} is damaged or was not written by a run: JSONDecodeError" in str(caught.value)
    samples.write_text('{"suite": "sums", "index": 0, "colour": 1}\n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match="damaged or was not written by a run"):
        _ = found["sums"].samples
    samples.write_text(text, encoding="utf-8")
    assert found["sums"].samples == run["sums"].samples
    samples.unlink()
    with pytest.raises(ConfigurationError, match=r"samples\.jsonl can't be read: No such file"):
        _ = found["sums"].samples
    assert read_run(tmp_path / "run")["sums"].samples == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "holds no results.json, so it is no folder of a run"),
        ("", "is not JSON: Expecting value"),
        ('{"schema_version": 1, "sui', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        (b"\xff", "is not JSON: "),
        ("[]", "is no result of a run: it holds no JSON object"),
        ("{}", "is no result of a run: it has no schema_version"),
        ('{"schema_version": true}', "it has no schema_version"),
        (
            '{"schema_version": 7}',
            f"was written by a newer evalution (schema 7, this one reads up to {SCHEMA_VERSION}); "
            "upgrade: pip install --upgrade evalution-runner",
        ),
    ],
)
def test_file_that_is_no_result_is_reported(
    tmp_path: Path, content: str | bytes | None, message: str
) -> None:
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "results.json").write_bytes(data)
    with pytest.raises(ConfigurationError) as caught:
        read_run(tmp_path)
    assert str(caught.value).startswith(str(tmp_path))
    assert message in str(caught.value)


def drop_engine(document: dict[str, Any]) -> None:
    del document["engine"]


def drop_metric_value(document: dict[str, Any]) -> None:
    del document["suites"][0]["metrics"]["exact_match"]["value"]


def turn_count_to_text(document: dict[str, Any]) -> None:
    document["suites"][1]["n"] = "4"


def make_count_negative(document: dict[str, Any]) -> None:
    document["suites"][0]["metrics"]["exact_match"]["n"] = -1


def turn_range_round(document: dict[str, Any]) -> None:
    document["suites"][0]["metrics"]["exact_match"]["row_range"] = [1.0, 1.0]


def misspell_status(document: dict[str, Any]) -> None:
    document["status"] = "finished"


def drop_status(document: dict[str, Any]) -> None:
    del document["status"]


def empty(document: dict[str, Any]) -> None:
    document.clear()
    document["schema_version"] = 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_engine, "is damaged: engine: the field is missing"),
        (drop_metric_value, "suites[0].metrics.exact_match.value: the field is missing"),
        (turn_count_to_text, "suites[1].n: input should be a valid integer"),
        (make_count_negative, "exact_match.n: input should be greater than or equal to 0"),
        (turn_range_round, "the least score of a row isn't below the largest"),
        (misspell_status, "status: input should be 'running', 'done', 'failed' or 'interrupted'"),
        (empty, "model: the field is missing; engine: the field is missing"),
        (drop_status, "is damaged: status: the field is missing"),
    ],
)
def test_damaged_result_is_reported_by_its_field(
    run: RunResult, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_run(rewritten(run, change))
    assert message in str(caught.value)


def test_folder_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_run(tmp_path / "rum")
    assert f"there is no run folder {tmp_path / 'rum'}; name the folder" in str(caught.value)
    with pytest.raises(ConfigurationError, match="can't be read: File name too long"):
        read_run(tmp_path / ("r" * 300))


def test_folder_of_runs_is_reported_with_the_last_of_them(run: RunResult, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_run(tmp_path)
    assert f"is no run itself; name one of those in it (1 in all): {tmp_path / 'run'}" in str(
        caught.value
    )


def test_run_that_never_began_is_reported(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").touch()
    with pytest.raises(ConfigurationError) as caught:
        read_run(tmp_path)
    assert "the model of the run in it was never loaded" in str(caught.value)
    assert f"`evalution run SPEC --output {tmp_path}` goes on with it" in str(caught.value)
    (tmp_path / "progress.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="the model of the run in it is being loaded"):
        read_run(tmp_path)
