"""The one thread of a session: calls in turn, errors where they were asked for, an end for all."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from evalution_core import EngineRuntimeError, EvalutionError, SessionClosedError
from evalution_enginekit.runtime_thread import IDLE, RuntimeThread

WAIT_S = 20


class Counter:
    """Takes a number of steps, each after none or some rest, then is idle."""

    def __init__(self, rests: list[float]):
        self.rests = rests
        self.steps: list[threading.Thread] = []
        self.ended: EvalutionError | None = None
        self.idle = threading.Event()

    def step(self) -> float:
        self.steps.append(threading.current_thread())
        if self.rests:
            return self.rests.pop(0)
        self.idle.set()
        return IDLE

    def shut_down(self, error: EvalutionError) -> None:
        self.ended = error


class Broken(Counter):
    def step(self) -> float:
        raise RuntimeError("a defect of the kit")


@pytest.fixture
def thread() -> Iterator[RuntimeThread]:
    thread = RuntimeThread("the toy session")
    yield thread
    thread.close(lambda: None)


def test_a_call_returns_or_raises_where_it_was_asked_for(thread: RuntimeThread) -> None:
    assert thread.call(lambda: 42) == 42
    error = KeyError("x")

    def fail() -> None:
        raise error

    with pytest.raises(KeyError) as raised:
        thread.call(fail)
    assert raised.value is error
    assert thread.call(lambda: 43) == 43


def test_all_calls_run_on_one_thread(thread: RuntimeThread, aside: ThreadPoolExecutor) -> None:
    asked = [aside.submit(thread.call, threading.current_thread) for _ in range(12)]
    (runtime,) = {future.result(WAIT_S) for future in asked}
    assert runtime is not threading.current_thread()
    assert runtime.daemon
    assert runtime.name == "the toy session runtime"
    assert not thread.is_current
    assert thread.call(lambda: thread.is_current)


def test_a_call_within_a_call_runs_at_once(
    thread: RuntimeThread, aside: ThreadPoolExecutor
) -> None:
    nested = aside.submit(thread.call, lambda: thread.call(lambda: "inner"))
    assert nested.result(WAIT_S) == "inner"


def test_tasks_are_stepped_until_idle_and_again_when_woken(
    thread: RuntimeThread,
) -> None:
    counter = Counter([0, 0.001, 0])
    thread.add(counter)
    assert counter.steps == []
    thread.wake()
    assert counter.idle.wait(WAIT_S)
    assert len(counter.steps) >= 4
    counter.idle.clear()
    thread.wake()
    assert counter.idle.wait(WAIT_S)
    assert len(set(counter.steps)) == 1


def test_calls_run_between_steps_of_a_busy_task(
    thread: RuntimeThread, aside: ThreadPoolExecutor
) -> None:
    class Busy(Counter):
        def step(self) -> float:
            return 0

    thread.add(Busy([]))
    thread.wake()
    assert aside.submit(thread.call, lambda: "in between").result(WAIT_S) == "in between"


def test_close_ends_tasks_then_releases_once(thread: RuntimeThread) -> None:
    order: list[str] = []
    counter = Counter([])
    thread.add(counter)
    thread.wake()
    thread.close(lambda: order.append("released" if counter.ended else "too early"))
    thread.close(lambda: order.append("again"))
    assert order == ["released"]
    assert isinstance(counter.ended, SessionClosedError)


def test_close_without_any_work_ends_tasks(thread: RuntimeThread) -> None:
    counter = Counter([])
    thread.add(counter)
    thread.close(lambda: None)
    assert isinstance(counter.ended, SessionClosedError)
    assert counter.steps == []


def test_a_closed_thread_refuses_work(thread: RuntimeThread) -> None:
    thread.close(lambda: None)
    with pytest.raises(
        SessionClosedError, match=r"^the toy session is closed; build a new session"
    ):
        thread.ensure_open()
    with pytest.raises(SessionClosedError, match="the toy session is closed"):
        thread.call(lambda: 1)
    thread.wake()


def test_a_call_that_waits_when_the_session_closes_is_ended(
    thread: RuntimeThread, gate: threading.Event, aside: ThreadPoolExecutor
) -> None:
    holding = threading.Event()

    def hold() -> bool:
        holding.set()
        return gate.wait(WAIT_S)

    signals = threading.Semaphore(0)
    thread.on_wake = lambda: signals.release()
    held = aside.submit(thread.call, hold)
    assert holding.wait(WAIT_S)
    assert signals.acquire(timeout=WAIT_S)
    pending = aside.submit(thread.call, lambda: "never")
    assert signals.acquire(timeout=WAIT_S)
    closing = aside.submit(thread.close, lambda: None)
    assert signals.acquire(timeout=WAIT_S)
    gate.set()
    closing.result(WAIT_S)
    assert held.result(WAIT_S)
    with pytest.raises(SessionClosedError, match="closed meanwhile"):
        pending.result(WAIT_S)


def test_failed_release_is_raised_and_the_session_stays_closed(thread: RuntimeThread) -> None:
    def fail() -> None:
        raise OSError("device lost")

    with pytest.raises(OSError, match="device lost"):
        thread.close(fail)
    with pytest.raises(SessionClosedError, match="the toy session is closed"):
        thread.ensure_open()


def test_error_in_a_step_ends_all_waiting_calls(
    thread: RuntimeThread, aside: ThreadPoolExecutor
) -> None:
    broken = Broken([])
    thread.add(broken)
    assert thread.call(lambda: "before the first step") == "before the first step"
    for _ in range(2):
        with pytest.raises(
            EngineRuntimeError, match="runtime thread ended: RuntimeError: a defect of the kit"
        ) as raised:
            aside.submit(thread.call, lambda: "never").result(WAIT_S)
        assert isinstance(raised.value.__cause__, RuntimeError)


UNCLOSED = """
import os, threading, time
from evalution_enginekit.runtime_thread import RuntimeThread

begun, thread = threading.Event(), RuntimeThread("the toy session")

def step():
    begun.set()
    time.sleep(0.3)
    os.write(1, b"whole step")

thread.post(step)
begun.wait()
"""


def test_process_that_closed_no_session_ends_after_the_step_it_is_in() -> None:
    done = subprocess.run([sys.executable, "-c", UNCLOSED], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"whole step", b"")


SESSION = """
from evalution_core import GenerationRequest, Model
from evalution_enginekit.mock import Mock

session = Mock().build(Model())
session.generate([GenerationRequest("a", max_new_tokens=1)])
"""
EXITS = {
    "a hook of exit that is older than the kit": "import atexit\n"
    f"atexit.register(lambda: session.close()){SESSION}",
    "a finalizer": "class Holder:\n    def __del__(self):\n        self.session.close()\n"
    f"{SESSION}\nholder = Holder()\nholder.session = session",
    "a generator that is suspended": f"{SESSION}\ndef read():\n    with session:\n        yield 1\n"
    "reader = read()\nnext(reader)",
    "a finalizer of a loop": "from evalution_enginekit.request_loop import RequestLoop\n"
    "async def nothing():\n    pass\n"
    "class Holder:\n    def __del__(self):\n        self.loop.close(nothing)\n"
    "holder = Holder()\nholder.loop = RequestLoop('toy')\nholder.loop.call(nothing)",
}


@pytest.mark.parametrize("closing", EXITS)
def test_process_ends_whoever_closes_its_session(closing: str) -> None:
    command = [sys.executable, "-c", EXITS[closing]]
    done = subprocess.run(command, capture_output=True, check=False, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (0, b"")
