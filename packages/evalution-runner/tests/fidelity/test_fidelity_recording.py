"""A recorded reference in place of a live one, and the commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evalution
from evalution.environment import Environment
from evalution.fidelity import (
    FidelityOptions,
    measure_fidelity,
    read_text_suite,
    record_reference,
)
from evalution.fidelity.lockstep import Blocks
from evalution.fidelity.reference_file import ReferenceFile
from evalution.fidelity.requests import Window
from evalution.fidelity.sides import LiveSide
from evalution.progress import Progress
from evalution.runs.preflight import EngineAndModel
from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    Model,
    RequestFailure,
    UnsupportedRequestError,
)
from evalution_enginekit.mock import Mock, MockSession
from evalution_reference import Reference

EXACT = EngineAndModel(Reference(dtype="float64"), Model("builtin:tiny"))
NARROW = EngineAndModel(Reference(dtype="float32"), Model("builtin:tiny"))
PROSE = evalution.Perplexity(data="builtin:tiny/prose", text="text", max_rows=4)
OPTIONS = FidelityOptions(window=64)


def test_recorded_rows_give_nearly_the_figures_of_live_ones(tmp_path: Path) -> None:
    file = tmp_path / "reference.sqlite"
    count = record_reference(EXACT, [PROSE], file, OPTIONS)
    found = measure_fidelity(file, NARROW, [PROSE])
    assert found.window == 64
    assert found.reference.engine["options"]["dtype"] == "float64"
    divergence = found.overall.candidate.divergence
    assert 0 < divergence.kl.value < 1e-6  # the rounding to float16
    assert divergence.same_top.value > 0.99
    assert found.overall.candidate.greedy is None
    assert record_reference(EXACT, [PROSE], file, OPTIONS) == count
    with ReferenceFile(file) as recorded:
        assert recorded.recording.texts == {"prose": found.suites[0].texts}


def test_progress_of_a_recording_that_fails_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Shown(Progress):
        def suite_started(self, name: str, total: int) -> None:
            events.append(name)

        def suite_finished(self) -> None:
            events.append("closed")

    class Failing:
        def read(self, windows: Sequence[Window]) -> Blocks:
            if len(windows) == 1:  # by which the size of the vocabulary is seen
                yield 0, np.zeros((1, 40), np.float32)
            yield 0, RequestFailure(EngineRuntimeError("this window fails"), {})

    monkeypatch.setattr(LiveSide, "open_rows", lambda *_: Failing())
    with pytest.raises(EngineRuntimeError, match="suite 'prose', window 1: this window fails"):
        record_reference(EXACT, [PROSE], tmp_path / "reference.sqlite", OPTIONS, progress=Shown())
    assert events == ["prose", "closed"]


def test_kept_figures_of_another_recording_at_the_same_place_are_refused(tmp_path: Path) -> None:
    file, options = tmp_path / "reference.sqlite", replace(OPTIONS, output=tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    record_reference(EXACT, [PROSE], file, OPTIONS)
    measure_fidelity(file, NARROW, [PROSE], options)
    file.unlink()
    record_reference(NARROW, [PROSE], file, OPTIONS)
    with pytest.raises(
        ConfigurationError, match=r"reference\.options\.dtype was 'float64', now 'fl"
    ):
        measure_fidelity(file, NARROW, [PROSE], options)


class _Answering(MockSession):
    """Answers from another environment, in which the engine has another version."""

    environment = Environment({}, {"engine": "3.0"})


class _Elsewhere(Mock):
    def build(self, model: Model) -> MockSession:
        session = super().build(model)
        session.__class__ = _Answering
        return session


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (Mock(), r"versions\.runtime is '2\.0', it wasn't there"),
        (_Elsewhere(), r"versions\.engine was '3\.0', now '4\.0'"),
    ],
)
def test_recording_does_not_go_on_with_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Mock, message: str
) -> None:
    file = tmp_path / "reference.sqlite"
    subject = EngineAndModel(engine, Model("any"))
    record_reference(subject, [PROSE], file, OPTIONS)
    monkeypatch.setattr(Mock, "describe_runtime", lambda _: {"version": "2.0"})
    monkeypatch.setattr(_Answering, "environment", Environment({}, {"engine": "4.0"}))
    message += "; to record it again, name another --output, or move it away"
    with pytest.raises(ConfigurationError, match=message):
        record_reference(subject, [PROSE], file, OPTIONS)


def test_recorded_window_that_is_too_long_is_to_be_recorded_again(tmp_path: Path) -> None:
    file = tmp_path / "reference.sqlite"
    record_reference(EXACT, [PROSE], file, OPTIONS)
    short = EngineAndModel(Reference(max_model_len=40), Model("builtin:tiny"))
    message = "max_model_len=40 of one side; record the reference again with --window 40, or set"
    with pytest.raises(ConfigurationError, match=message):
        measure_fidelity(file, short, [PROSE])
    with pytest.raises(ConfigurationError, match="of one side; ask for a shorter --window, or set"):
        measure_fidelity(EXACT, short, [PROSE], OPTIONS)


@pytest.mark.parametrize(
    ("name", "top", "message"),
    [
        ("missing/reference.sqlite", None, "there is no folder .*missing; make it, or name"),
        (".", None, "is a folder; name a file in it as --output"),
        ("reference.sqlite", 0, "top must be at least 1, got 0"),
    ],
)
def test_recording_that_cannot_be_written_is_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, top: int | None, message: str
) -> None:
    monkeypatch.setattr(Reference, "build", lambda *_: pytest.fail("the model was loaded"))
    with pytest.raises(ConfigurationError, match=message):
        record_reference(EXACT, [PROSE], tmp_path / name, OPTIONS, top=top)


def test_recorded_top_tokens_are_bounds(tmp_path: Path) -> None:
    file = tmp_path / "reference.sqlite"
    record_reference(EXACT, [PROSE], file, OPTIONS, top=8)
    found = measure_fidelity(file, NARROW, [PROSE])
    assert found.overall.candidate.divergence.is_lower_bound
    assert found.top == 8


@pytest.mark.parametrize(
    ("tests", "options", "message"),
    [
        ([PROSE], FidelityOptions(window=32), "recorded in windows of 64"),
        ([replace(PROSE, max_rows=2), PROSE], FidelityOptions(), "has no rows of these ids"),
    ],
)
def test_recording_of_something_else_is_refused_before_anything_is_compared(
    tmp_path: Path, tests: list[Any], options: FidelityOptions, message: str
) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("a window was compared")

    file = tmp_path / "reference.sqlite"
    record_reference(EXACT, [replace(PROSE, max_rows=2)], file, OPTIONS)
    with pytest.raises(ConfigurationError, match=message):
        measure_fidelity(file, NARROW, tests, replace(options, observe=refuse))


def test_recording_by_another_tokenizer_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "reference.sqlite"
    record_reference(EngineAndModel(Mock(), Model("any")), [PROSE], file, OPTIONS)
    with pytest.raises(ConfigurationError, match="different tokenizers"):
        measure_fidelity(file, NARROW, [PROSE])


def test_generations_are_not_recorded(tmp_path: Path) -> None:
    sums = evalution.Generation(data="builtin:tiny/sums", prompt="{question}", target="answer")
    with pytest.raises(UnsupportedRequestError, match="completions aren't kept in a file"):
        record_reference(EXACT, [sums], tmp_path / "reference.sqlite")


SPEC = """
engine: {{type: Reference, dtype: {dtype}}}
model: builtin:tiny
tests: [{{type: Perplexity, data: builtin:tiny/prose, text: text, max_rows: 3}}]
"""


def write_specs(folder: Path) -> list[str]:
    for dtype in ("float64", "float32"):
        (folder / f"{dtype}.yaml").write_text(SPEC.format(dtype=dtype))
    return [str(folder / "float64.yaml"), str(folder / "float32.yaml")]


def test_command_measures_two_specs_and_writes_the_result(
    tmp_path: Path, command_line: Any
) -> None:
    reference, candidate = write_specs(tmp_path)
    output = tmp_path / "measured"
    shown = command_line(
        "fidelity", reference, candidate, "--window", "64", "--output", str(output)
    )
    assert "Changing the options of the engine costs" in shown.stdout
    assert "KL(reference" in shown.stdout
    written = json.loads((output / "fidelity.json").read_text())
    assert written["window"] == 64
    assert (output / "fidelity.svg").read_text().startswith("<svg")


def test_command_records_and_measures_a_text(tmp_path: Path, command_line: Any) -> None:
    reference, candidate = write_specs(tmp_path)
    text, file = tmp_path / "tale.txt", tmp_path / "reference.sqlite"
    text.write_text("The cat sat on the mat. " * 40)
    common = ("--text", str(text), "--window", "64")
    shown = command_line("fidelity", "record", reference, "-o", str(file), *common)
    assert f"windows in {file}" in shown.stdout
    shown = command_line("fidelity", str(file), candidate, *common, "--json")
    assert json.loads(shown.stdout)["suites"][0]["name"] == "tale"
    found = json.loads(command_line("fidelity", reference, candidate, *common, "--json").stdout)
    whole = found["overall"]
    assert whole["candidate"]["greedy"]["prompts"] == whole["documents"] > 1


def test_mark_of_the_byte_order_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "tale.txt").write_text("The cat sat.", encoding="utf-8-sig")
    suite: Any = read_text_suite(str(tmp_path / "tale.txt"))
    assert suite.data == [{"text": "The cat sat."}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf\n", "is empty"),
        (b"caf\xe9", "no text in UTF-8"),
        (None, "can't be read"),
    ],
)
def test_text_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, command_line: Any, assert_says: Any, content: bytes | None, message: str
) -> None:
    reference, candidate = write_specs(tmp_path)
    text = tmp_path / "tale.txt"
    if content is not None:
        text.write_bytes(content)
    assert_says(command_line("fidelity", reference, candidate, "--text", str(text)), 2, message)


def test_recording_stands_for_a_reference_alone(
    tmp_path: Path, command_line: Any, assert_says: Any
) -> None:
    reference, candidate = write_specs(tmp_path)
    file = str(tmp_path / "reference.sqlite")
    record_reference(EXACT, [PROSE], Path(file), OPTIONS)
    message = f"{file} is a recording, which can stand for the reference alone"
    assert_says(command_line("fidelity", reference, file), 2, message)
    assert_says(command_line("fidelity", reference, candidate, "--control", file), 2, message)
    assert_says(command_line("fidelity", "record", file, "-o", "copy"), 2, message)


def test_control_is_named_or_refused(tmp_path: Path, command_line: Any, assert_says: Any) -> None:
    reference, candidate = write_specs(tmp_path)
    words = ["fidelity", reference, candidate, "--control", reference, "--no-control"]
    assert_says(command_line(*words), 2, "--control and --no-control exclude each other")


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ([], "nothing is kept without --output"),
        (["--output", "out"], "what was finished is kept: the same command goes on there"),
    ],
)
def test_interrupted_measurement_says_what_is_kept(
    tmp_path: Path,
    command_line: Any,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    kept: str,
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    specs = write_specs(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evalution.fidelity, "measure_fidelity", interrupt)
    done = command_line("fidelity", *specs, *words)
    assert (done.returncode, done.stderr) == (130, f"interrupted; {kept}\n")
