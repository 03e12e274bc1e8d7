from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

import evalution.progress
import evalution.progress_bar
from evalution.progress import PlainProgress, Progress
from evalution.progress_bar import ProgressBar


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
    assert lines[0] == "sums: 10/100, 0.3/s, acc 0.500"


def test_slow_suite_gives_a_sign_of_life_each_minute(clock: Clock) -> None:
    lines = lines_of(clock, 1000, 20.0)
    assert lines[0].startswith("sums: 3/1000, 0.1/s")
    assert len(lines) == 1000 * 20 // 60 + 1


def test_suite_that_was_finished_before_has_no_rate(clock: Clock) -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream)
    progress.suite_started("sums", 2)
    progress.sample_finished(2, 0, ("acc", 0.5))
    progress.samples_cached(2)
    progress.suite_finished()
    assert stream.getvalue().splitlines() == [
        "sums: 2 of 2 were finished before",
        "sums: 2/2, acc 0.500",
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
        "sums: 1/2, 1.0/s, 1 failed",
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_bar_is_closed_with_its_suite(fails: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    bar = ProgressBar(console)
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


def test_silence_says_nothing(capsys: Any) -> None:
    silence = Progress()
    silence.suite_started("sums", 2)
    silence.sample_finished(1, 0, None)
    silence.suite_finished()
    assert capsys.readouterr() == ("", "")
