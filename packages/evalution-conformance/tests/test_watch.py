"""A check can't hang the run, and sessions are built on the thread that waits for it."""

from __future__ import annotations

import threading

import pytest

from evalution_conformance.subject import Subject
from evalution_conformance.suite import NotRun, run_check
from evalution_conformance.watch import StuckError, call_on_main_thread, call_within, run_watched
from evalution_core import Model
from mutants.toy import Toy


def fails() -> None:
    raise KeyError("planted")


def hangs() -> None:
    threading.Event().wait()


def test_result_or_error_of_a_check_is_passed_on() -> None:
    assert run_watched(lambda: 7, timeout=10) == 7
    with pytest.raises(KeyError, match="planted"):
        run_watched(fails, timeout=10)
    with pytest.raises(pytest.skip.Exception):
        run_watched(lambda: pytest.skip("planted"), timeout=10)


def test_hanging_check_is_abandoned() -> None:
    with pytest.raises(StuckError, match=r"didn't end within 0\.05 seconds") as caught:
        run_watched(hangs, timeout=0.05)
    # Calls that other tests abandoned may hang beside it, on threads of other names.
    stacks = [note for note in caught.value.__notes__ if "in hangs" in note]
    assert any(stack.startswith("Thread 'conformance check' is at\n") for stack in stacks)


def test_session_is_built_on_the_waiting_thread() -> None:
    here = threading.get_ident()
    assert run_watched(lambda: call_on_main_thread(threading.get_ident), timeout=10) == here
    assert run_watched(threading.get_ident, timeout=10) != here
    assert call_on_main_thread(threading.get_ident) == here


def test_error_of_a_build_is_raised_in_the_check() -> None:
    def check() -> str:
        with pytest.raises(KeyError, match="planted"):
            call_on_main_thread(fails)
        return "caught"

    assert run_watched(check, timeout=10) == "caught"


def test_time_of_a_build_is_not_counted() -> None:
    built = threading.Event()

    def check() -> bool:
        return call_on_main_thread(lambda: built.wait(0.2))

    assert run_watched(check, timeout=0.1) is False


def test_hanging_call_is_named() -> None:
    with pytest.raises(StuckError, match=r"close\(\) didn't come back within 0\.05 seconds"):
        call_within(hangs, timeout=0.05, doing="close()")
    with pytest.raises(TimeoutError, match="its own"):
        call_within(raises_timeout, timeout=10, doing="close()")


def raises_timeout() -> None:
    raise TimeoutError("its own")


def test_no_check_is_tried_after_five_that_hung() -> None:
    """Or an engine that hangs would cost a whole timeout for each of them."""
    subject = Subject(Toy(), Model("toy"), timeout=0.05)
    for _ in range(5):
        with pytest.raises(StuckError):
            run_check(lambda _suite, _subject: hangs(), subject)
    with pytest.raises(
        NotRun, match=r"^not run: 5 checks took longer than 0\.05 s each; each names"
    ):
        run_check(lambda _suite, _subject: None, subject)
