"""Results of worked problems: what is taken for an answer, and for the same one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evalution.scoring.mathematics import (
    FinalAnswerMatch,
    LatexMatch,
    MathVerify,
    find_boxed,
    normalize_final_answer,
)
from evalution.scoring.timed_calls import TimedCalls
from evalution_core import ConfigurationError

SLOW = """
import time
from evalution.scoring.timed_calls import answer_calls

def work(word):
    print("noise")
    if word == "sleep":
        time.sleep(60)
    if word == "die":
        raise SystemExit(3)
    return word.upper()

answer_calls(work)
"""


@pytest.mark.parametrize(
    ("answer", "target", "is_right"),
    [
        (r"It is $\dfrac12$.", r"\frac{1}{2}", True),
        ("x = 5", "5", True),
        ("3/4", r"\frac{3}{4}", True),
        ("3 / 4", r"\frac{3}{4}", True),
        ("a/b", "a/b", True),
        ("a / b", "a/b", False),
        (r"45^\circ", "45", True),
        (".5", r"\frac{1}{2}", True),
        (r"\sqrt", r"\sqrt", True),
        ("12", "-12", False),
    ],
)
def test_a_result_is_compared_by_its_spelling(answer: str, target: str, is_right: bool) -> None:
    metric = LatexMatch()
    assert bool(metric.grade(metric.extract(answer), target)) == is_right


def test_the_boxed_result_of_a_solution() -> None:
    assert find_boxed(r"$\boxed{1}$, no: $\boxed{\frac{1}{2}}$ it is") == r"\frac{1}{2}"
    assert find_boxed(r"so $\boxed 7$.") == "7"
    with pytest.raises(ConfigurationError, match=r"the solution has no result in \\boxed"):
        find_boxed(r"it is \fbox{3}")


def test_a_final_answer_loses_its_units_and_keeps_its_commands() -> None:
    assert normalize_final_answer(r"x = 1,000 \text{ units}") == "1000"
    assert normalize_final_answer(r"\left(3, 4\right)") == r"\left(3,4\right)"
    assert FinalAnswerMatch().extract("It is 3.") == "[invalidanswer]"


def test_a_metric_by_formulas_names_the_extra_that_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evalution.hints.find_spec", lambda name: None)
    with pytest.raises(
        ConfigurationError,
        match=r"metric math_verify needs math-verify, which isn't installed; "
        r"pip install 'evalution-runner\[math\]'",
    ):
        MathVerify().check_target(r"\boxed{1}")


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module that answers calls."""
    (tmp_path / "slow_module.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "slow_module"


def test_a_call_that_is_interrupted_leaves_no_answer_for_the_next(
    slow_module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = TimedCalls(slow_module, time_limit_s=60)
    assert calls.call("a") == "A"
    answers = calls._answers
    with monkeypatch.context() as patch:
        patch.setattr(calls, "_answers", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            calls.call("b")
    assert calls._answers is answers
    assert [calls.call(word) for word in ("c", "d")] == ["C", "D"]


def test_a_call_runs_no_file_of_the_working_folder_and_no_signal_of_the_terminal_reaches_it(
    slow_module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here := tmp_path / "here").mkdir()
    (here / "queue.py").write_text("raise SystemExit")
    monkeypatch.chdir(here)
    calls = TimedCalls(slow_module, time_limit_s=60)
    assert calls.call("a") == "A"
    assert calls._process is not None
    assert os.getpgid(calls._process.pid) != os.getpgid(0)


class Interrupted:
    """A queue at which Ctrl-C comes."""

    def get(self, timeout: float) -> str:
        raise KeyboardInterrupt


def test_a_call_that_takes_too_long_is_killed_and_the_next_one_answered(slow_module: str) -> None:
    calls = TimedCalls(slow_module, time_limit_s=0.5)
    assert [calls.call(word) for word in ("sleep", "a", "die", "b")] == [None, "A", None, "B"]
    with pytest.raises(RuntimeError, match="python -m no_such_module doesn't start"):
        TimedCalls("no_such_module", time_limit_s=1).call("a")
