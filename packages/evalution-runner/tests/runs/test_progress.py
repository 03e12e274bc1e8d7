from __future__ import annotations

import io
import re
from threading import Event
from typing import Any

import pytest
from rich.console import Console

import evalution.progress
import evalution.progress_bar
from evalution.progress import PlainProgress, Progress, SuiteProgress
from evalution.progress_bar import ProgressBar, make_terminal_progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(evalution.progress, "time", found)
    monkeypatch.setattr(evalution.progress_bar, "time", found)
    return found


def lines_of(clock: Clock, samples: int, seconds_each: float) -> list[str]:
    stream = io.StringIO()
    progress = PlainProgress(stream)
    progress.suite_started("sums", samples)
    for done in range(1, samples + 1):
        clock.now += seconds_each
        progress.sample_finished(done, 0, ("acc", 0.5))
    progress.suite_finished()
    return stream.getvalue().splitlines()


def test_fast_suite_gives_one_line(clock: Clock) -> None:
    assert lines_of(clock, 1000, 0.001) == ["sums: 1000/1000, 1000.0/s, acc 0.500"]


def test_long_suite_gives_a_line_each_tenth(clock: Clock) -> None:
    lines = lines_of(clock, 100, 3.0)
    assert len(lines) == 10
    assert lines[0] == "sums: 10/100, 0.3/s, acc 0.500, 4:30 left"


def test_state_has_tokens_a_second_and_the_time_left_of_suite_and_run(clock: Clock) -> None:
    progress = SuiteProgress()
    progress.suites_planned([10, 100, 300])
    progress.suite_started("sums", 10)
    clock.now += 10
    progress.sample_finished(10, 0, None)
    progress.suite_finished()
    progress.suite_started("long", 100)
    progress.tokens_computed(999)
    clock.now += 5
    progress.samples_cached(40)  # neither they nor their tokens were computed now
    clock.now += 10
    progress.tokens_computed(25_000)
    progress.sample_finished(50, 3, ("acc", 0.75))
    assert progress.place == (2, 3)
    state = "1.0/s, 2,500 tokens/s, acc 0.750, 3 failed, 0:50 left, run 5:50"
    assert progress.format_state() == state
    narrower = {progress.format_state(width) for width in range(len(state))}
    assert narrower == {
        "1.0/s, acc 0.750, 3 failed, 0:50 left, run 5:50",
        "acc 0.750, 3 failed, 0:50 left, run 5:50",
        "acc 0.750, 3 failed, 0:50 left",
        "acc 0.750, 3 failed",
        "3 failed",
        "",
    }


def test_state_says_for_how_long_no_answer_came(clock: Clock) -> None:
    progress = SuiteProgress()
    progress.suite_started("sums", 4)
    clock.now += 4000
    assert progress.format_state() == "nothing for 1:06:40"
    progress.sample_finished(1, 0, None)
    assert "nothing" not in progress.format_state()


@pytest.mark.parametrize("step", ["rows", "model", "suite"])
def test_silent_step_gives_lines_from_a_thread(step: str) -> None:
    lines: list[str] = []
    has_printed = Event()

    class Stream(io.StringIO):
        def write(self, text: str, /) -> int:
            lines.append(text)
            if len(lines) > 2:
                has_printed.set()
            return len(text)

    progress = PlainProgress(Stream(), silence_s=0.001)
    if step == "rows":
        progress.rows_checking("big")
    elif step == "model":
        progress.model_loading("m", "Mock")
    else:
        progress.suite_started("big", 9)
    assert has_printed.wait(10)
    progress.rows_checked()
    expected = {
        "rows": "reading the rows of big: 0:00 so far\n",
        "model": "loading m on Mock: 0:00 so far\n",
        "suite": "big: 0/9\n",
    }
    assert lines[1] == expected[step]


def test_suite_that_was_finished_before_has_no_rate(clock: Clock) -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream)
    progress.suite_started("sums", 2)
    progress.sample_finished(2, 0, ("acc", 0.5))
    progress.samples_cached(2)
    progress.suite_finished()
    progress.suite_started("rows", 3)
    progress.samples_cached(3)
    progress.suite_finished()
    assert stream.getvalue().splitlines() == [
        "sums: 2 of 2 were finished before",
        "sums: 2/2, acc 0.500",
        "rows: 3 of 3 were finished before",
        "rows: 3/3",
    ]


def test_failed_samples_are_shown(clock: Clock) -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream)
    progress.model_loading("m", "Mock")
    progress.model_ready(1.25)
    progress.suite_started("sums", 2)
    clock.now += 1
    progress.sample_finished(1, 1, None)
    progress.suite_finished()
    assert stream.getvalue().splitlines() == [
        "loading m on Mock",
        "model ready after 1.2 s",
        "sums: 1/2, 1.0/s, 1 failed, 0:01 left",
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_bar_is_closed_with_its_suite(fails: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    bar = ProgressBar(console)
    bar.rows_checking("sums")
    bar.rows_checked()
    bar.model_loading("m", "Mock")
    if fails:
        bar.model_failed()
    else:
        bar.model_ready(0.5)
        bar.suite_started("sums", 2)
        bar.sample_finished(2, 1, ("acc", 0.5))
        bar.suite_finished()
        assert "acc 0.500, 1 failed" in stream.getvalue()
    length = len(stream.getvalue())
    console.print("after")
    assert stream.getvalue()[length:] == "after\n"  # a bar that is still open would be redrawn


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (120, "a-suite-with-a-long-name (1 of 2) -------------------- 200/200 "),
        (80, "a-suite-with-a-long-name (1/2) -------- 200/200 "),
        (40, "a-suit..-name (1/2) 200/200 1 failed"),
    ],
)
def test_bar_fits_a_narrow_terminal_and_an_ascii_one(
    clock: Clock, width: int, expected: str
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    bar = ProgressBar(Console(file=stream, force_terminal=True, width=width, no_color=True))
    bar.suites_planned([200, 2])
    bar.suite_started("a-suite-with-a-long-name", 200)
    clock.now += 10
    bar.sample_finished(200, 1, ("exact_match", 0.5))
    bar.suite_finished()
    stream.seek(0)
    last = re.split(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]+", stream.read())
    line = next(text for text in reversed(last) if "200/200" in text)
    assert line.strip().startswith(expected.strip())
    assert len(line) <= width


def test_dumb_terminal_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert type(make_terminal_progress()) is ProgressBar
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_terminal_progress()) is PlainProgress


def test_silence_says_nothing(capsys: Any) -> None:
    silence = Progress()
    silence.suite_started("sums", 2)
    silence.sample_finished(1, 0, None)
    silence.suite_finished()
    assert capsys.readouterr() == ("", "")
