"""A call that is advanced step by step, from a thread of its own."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Generator

import pytest

from evalution_transformers.generate import run_stepwise


def counting(upto: int, seen: list[int]) -> Callable[[Callable[[int], None]], None]:
    def call(report: Callable[[int], None]) -> None:
        for number in range(upto):
            seen.append(number)
            report(number)

    return call


def test_call_runs_only_while_its_iterator_is_advanced() -> None:
    seen: list[int] = []
    steps = run_stepwise(counting(3, seen), "test")
    assert not seen
    assert next(steps) == 0
    assert seen == [0]
    assert list(steps) == [1, 2]


def test_exception_of_the_call_is_raised_by_the_iterator() -> None:
    def broken(report: Callable[[int], None]) -> None:
        report(1)
        raise ValueError("planted")

    steps = run_stepwise(broken, "test")
    assert next(steps) == 1
    with pytest.raises(ValueError, match="planted"):
        next(steps)


def test_closing_the_iterator_ends_the_call_and_its_thread() -> None:
    seen: list[int] = []
    ended: list[str] = []

    def call(report: Callable[[int], None]) -> None:
        try:
            counting(1000, seen)(report)
        except Exception:  # noqa: BLE001 - what runtimes do
            ended.append("caught")
        finally:
            ended.append("unwound")

    before = threading.active_count()
    steps = run_stepwise(call, "test")
    next(steps)
    assert isinstance(steps, Generator)
    steps.close()
    assert (seen, ended) == ([0], ["unwound"])
    assert threading.active_count() == before


def test_raised_exception_keeps_no_frames_alive() -> None:
    class Held:
        """Stands for the tensors of a pass for which memory ran out."""

    held: list[weakref.ref[Held]] = []

    def broken(report: Callable[[int], None]) -> None:
        tensors = Held()
        held.append(weakref.ref(tensors))
        report(1)
        raise MemoryError

    gc.disable()
    try:
        with contextlib.suppress(MemoryError):
            list(run_stepwise(broken, "test"))
        assert held[0]() is None
    finally:
        gc.enable()
