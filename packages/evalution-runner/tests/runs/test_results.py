from __future__ import annotations

import io
import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from evalution.ascii_text import replace_lacking_signs
from evalution.progress_bar import ProgressBar
from evalution.results import MetricResult, RunResult, SampleResult, SuiteResult, to_json
from evalution.runs.options import DefaultFolder
from evalution.runs.store import RunFolder, open_folder
from evalution.samples_file import ResultsNotWrittenError
from evalution.table import list_complaints, make_console, make_result_table
from evalution_core import ConfigurationError

values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_any_result_is_strict_json(value: Any) -> None:
    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    read = json.loads(to_json(value), parse_constant=refuse)
    if not isinstance(value, float):
        return
    assert read == value if math.isfinite(value) else read is None


def test_what_json_does_not_know_is_written_too() -> None:
    found = to_json(
        {
            "f": np.float32(-1.5),
            "i": np.int64(3),
            "b": np.bool_(True),
            "n": np.float32("nan"),
            "a": np.arange(2),
            "p": Path("x"),
            (1, 2): 0,
        }
    )
    assert json.loads(found) == {
        "f": -1.5,
        "i": 3,
        "b": True,
        "n": None,
        "a": "[0 1]",
        "p": "x",
        "1,2": 0,
    }


def test_lone_surrogate_is_written_as_its_escape(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.samples.append(SampleResult("sums", 0, prompt="a\ud800b"))
    folder.write_results(run_result(first_failure="\udfff"))
    folder.close()
    assert (
        SuiteResult("sums", "", {}, {}, 1, 0, None, 1, 1.0, samples_file=folder.samples_file)
        .samples[0]
        .prompt
        == "a\ud800b"
    )
    written = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    assert written["suites"][0]["first_failure"] == "\udfff"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("r" * 300, "can't be written: File name too long"),
        ("file", "is a file; name another --output"),
        ("taken", "holds a run without its journal.sqlite, which can't go on"),
    ],
)
def test_folder_that_can_not_be_used_is_reported(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "samples.jsonl").write_text("kept", encoding="utf-8")
    (tmp_path / "taken" / "results.json").write_text('{"schema_version": 1}', encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        RunFolder(tmp_path / name)
    assert message in str(caught.value)
    assert (tmp_path / "taken" / "samples.jsonl").read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("samples.jsonl", '{"question": "1 + 1?"}\n'),
        ("results.json", '{"results": {"mine": 1}}'),
        ("results.json", "notes"),
        ("results.json", "[" * 200_000),
    ],
)
def test_files_that_no_run_wrote_are_left_alone(
    tmp_path: Path, name: str, content: str, fresh: bool
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    message = f"holds a {name} that no run is known to have written, .* name another --output"
    with pytest.raises(ConfigurationError, match=message):
        RunFolder(tmp_path, fresh=fresh)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text(encoding="utf-8") == content


def test_samples_are_read_back_in_the_order_of_the_rows(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    for index, error in ((2, None), (0, None), (1, None), (0, "withdrawn")):
        folder.samples.append(SampleResult("sums", index, prompt="é\u2028", error=error))
    folder.samples.append(SampleResult("other", 0))
    folder.close()
    with folder.samples_file.open("a", encoding="utf-8") as samples:
        samples.write('{"suite": "sums", "index": 3, "prom')
    found = SuiteResult("sums", "", {}, {}, 3, 1, None, 3, 1.0, samples_file=folder.samples_file)
    assert [(sample.index, sample.error) for sample in found.samples] == [
        (0, "withdrawn"),
        (1, None),
        (2, None),
    ]
    assert found.samples[1].prompt == "é\u2028"


def test_full_disk_is_reported_and_what_is_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full to write to")
    folder = RunFolder(tmp_path / "run")
    full = open("/dev/full", "wb")  # noqa: SIM115 - the folder closes it
    monkeypatch.setattr("evalution.samples_file.open_new", lambda _: full)
    with pytest.raises(ResultsNotWrittenError, match="can't be written: No space left"):
        folder.samples.append(SampleResult("sums", 1))
    with pytest.raises(ResultsNotWrittenError, match="can't be written: No space left"):
        folder.close()
    with pytest.raises(ValueError, match="closed"):
        folder.samples.append(SampleResult("sums", 2))


def make_folder(label: str, now: datetime) -> RunFolder:
    folder = open_folder(DefaultFolder(label, now), fresh=False)
    assert folder is not None
    return folder


def test_default_folders_are_new_and_have_plain_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    now = datetime(2026, 11, 21, 9, 30)
    first, second = (make_folder("../Meta Llama: 8B", now) for _ in range(2))
    assert first.path == Path("runs/20261121-093000-Meta-Llama-8B")
    assert second.path == first.path.with_name(f"{first.path.name}-2")
    third = make_folder("///", now)
    assert third.path.name == "20261121-093000-model"
    for folder in (first, second, third):
        folder.discard()
    assert list(Path("runs").iterdir()) == []


def run_result(**suite: Any) -> RunResult:
    metrics = {
        "ppl": MetricResult(1.5e9, None, False, 3),
        "acc": MetricResult(0.25, 0.125, True, 4, (0.0456, 0.6994)),
        "none": MetricResult(None, None, True, 0),
    }
    return RunResult(
        {"path": "p"},
        {"name": "Mock"},
        {},
        {},
        limit=4,
        suites=[
            SuiteResult(
                **{
                    "name": "sums",
                    "type": "Generation",
                    "options": {},
                    "metrics": metrics,
                    "n": 4,
                    "failed": 0,
                    "truncated": None,
                    "requests": 4,
                    "seconds": 1.0,
                    **suite,
                }
            )
        ],
    )


def test_table_shows_every_number(capsys: pytest.CaptureFixture[str]) -> None:
    make_console().print(make_result_table(run_result(truncated=2)))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["p", "on", "Mock,", "at", "most", "4", "rows", "of", "each", "suite"]
    assert ["sums", "ppl", "↓", "1.5e+09", "3", "0", "2"] in lines
    assert ["acc", "↑", "0.2500", "±", "0.1250", "[0.046,", "0.699]", "4", "0", "2"] in lines
    assert ["none", "↑", "–", "0", "0", "2"] in lines


def test_table_in_a_file_has_no_blanks_at_the_ends_of_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal = make_console()
    terminal.print("error:", end=" ")
    terminal.print(make_result_table(run_result()))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("error: p on Mock")
    assert [line for line in lines if line != line.rstrip()] == []


def test_table_of_an_ascii_stream_says_which_direction_is_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    replace_lacking_signs(stream)
    monkeypatch.setattr("sys.stdout", stream)
    make_console().print(make_result_table(run_result()))
    print("≥ 3 ± 1 … é")
    stream.seek(0)
    shown = stream.read().replace("|", "")
    lines = [line.split() for line in shown.splitlines()]
    assert ["acc", "^", "0.2500", "+-", "0.1250", "[0.046,", "0.699]", "4", "0", "-"] in lines
    assert ["sums", "ppl", "v", "1.5e+09", "3", "0", "-"] in lines
    assert lines[-1] == [">=", "3", "+-", "1", "...", "?"]


def test_terminal_of_the_c_locale_gets_ascii_and_a_file_what_python_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("locale.getencoding", lambda: "ANSI_X3.4-1968")
    terminal, file = (kind(io.BytesIO(), encoding="utf-8") for kind in (Terminal, io.TextIOWrapper))
    for stream in (terminal, file):
        replace_lacking_signs(stream)
    assert (terminal.encoding, file.encoding) == ("ascii", "utf-8")


def test_brackets_in_names_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_result(name="a[/b] :smile:")
    found.model["label"] = "[/INST] x"
    make_console().print(make_result_table(found))
    shown = capsys.readouterr().out
    assert "a[/b] :smile:" in shown
    assert "[/INST] x on Mock" in shown


@pytest.mark.parametrize("width", [30, 40, 64, 80, 120])
def test_every_score_is_readable_on_a_narrow_terminal(width: int) -> None:
    terminal = Console(width=width, markup=False)
    found = run_result(name="a_suite_with_a_rather_long_name")
    with terminal.capture() as shown:
        terminal.print(make_result_table(found, width=width))
    for value in ("1.5e+09", "0.2500"):
        assert value in shown.get()
    assert ("± 0.1250" in shown.get()) == (width >= 100)
    assert ("[0.046, 0.699]" in shown.get()) == (width >= 64)
    assert ("wider terminals:" in shown.get()) == (width < 100)
    assert "…" not in shown.get()


@pytest.mark.parametrize(("truncated", "is_shown"), [(0, False), (None, False), (7, True)])
def test_narrow_terminal_shows_what_was_truncated(truncated: int | None, is_shown: bool) -> None:
    terminal = Console(width=50)
    found = run_result(name="rows")
    found.suites[0].truncated = truncated
    with terminal.capture() as shown:
        terminal.print(make_result_table(found, width=50))
    assert ("cut" in shown.get()) == is_shown


def test_names_of_metrics_are_whole_in_40_columns(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_result(name="prose")
    (suite,) = found.suites
    suite.metrics = {"word_perplexity": suite.metrics["ppl"]}
    make_console().print(make_result_table(found, width=40))
    lines = capsys.readouterr().out.splitlines()
    assert any("word_perplexity ↓" in line for line in lines)
    assert max(map(len, lines)) <= 40


def test_progress_bar_shows_brackets_as_they_are() -> None:
    terminal = Console(width=80, force_terminal=True, file=io.StringIO())
    bar = ProgressBar(terminal)
    bar.model_loading("[/INST] x", "[red]Mock")
    bar.model_ready(1.0)
    bar.suite_started("a[/b]", 1)
    bar.sample_finished(1, 0, ("m[/x]", 1.0))
    bar.suite_finished()
    assert isinstance(terminal.file, io.StringIO)
    for text in ("[/INST] x", "[red]Mock", "a[/b]", "m[/x]"):
        assert text in terminal.file.getvalue()


def test_failures_are_reported_with_the_first() -> None:
    found = run_result(failed=2, first_failure="row 1: too long", errors=["a stranger"])
    assert list_complaints(found) == [
        "sums: 2 of 4 samples failed; row 1: too long",
        "sums: a stranger",
    ]
    assert found.failed == 3
    assert list_complaints(run_result()) == []
