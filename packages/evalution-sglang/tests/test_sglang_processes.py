"""SGLang's processes: their end, expected and not, and the state of this process."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest

from evalution_core import (
    EngineRuntimeError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
)
from evalution_sglang import SGLang
from evalution_sglang.engine_thread import catch_sigquit, is_only_catcher

psutil = pytest.importorskip("psutil", reason="psutil is not installed")

CPU = SGLang(
    device="cpu",
    dtype="float32",
    max_running_requests=4,
    max_total_tokens=4096,
    mem_fraction_static=0.1,
    sglang_kwargs={"sleep_on_idle": True},
)


def runners() -> list[Any]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and child.name().startswith("sglang::")
    ]


@pytest.fixture
def own_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put temporary files into a folder of a short name, as a socket's path has to be."""
    folder = tmp_path_factory.mktemp("s")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def bystander() -> Iterator[Any]:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield sleeper
    sleeper.communicate(b"\n")


@pytest.mark.slow
def test_killed_scheduler_is_an_error_that_names_requests_in_flight(
    bystander: Any, own_folder: Path
) -> None:
    pytest.importorskip("sglang", reason="sglang is not installed")
    environ, policy = dict(os.environ), asyncio.get_event_loop_policy()
    start, handlers = multiprocessing.get_start_method(allow_none=True), logging.root.handlers[:]
    quits, there = signal.getsignal(signal.SIGQUIT), {one.pid for one in runners()}
    with ThreadPoolExecutor(1) as pool:  # whose thread ends long before the session does
        session = pool.submit(lambda: CPU.build(Model("builtin:tiny"))).result()
    assert dict(os.environ) == environ
    assert asyncio.get_event_loop_policy() is policy
    assert multiprocessing.get_start_method(allow_none=True) == start
    assert logging.root.handlers == handlers
    assert signal.getsignal(signal.SIGQUIT) == quits
    mine = [one for one in runners() if one.pid not in there]
    with session:
        (score,) = session.loglikelihood([LoglikelihoodRequest("1+1=", "2")])
        assert score.logprob < 0
        scheduler = next(one for one in mine if "scheduler" in one.name())
        long = GenerationRequest("a", max_new_tokens=500, ignore_eos=True)
        stream = session.stream([(key, long) for key in ("x", "y")])
        next(stream)
        scheduler.kill()
        with pytest.raises(EngineRuntimeError, match="ended by itself, exit code -9") as dead:
            list(stream)
        assert dead.value.in_flight
        assert set(dead.value.in_flight) <= {"x", "y"}
        with pytest.raises(EngineRuntimeError, match="ended by itself"):
            session.generate([GenerationRequest("a", max_new_tokens=2)])
    assert {one.pid for one in runners()} == there
    assert not [file for file in own_folder.iterdir() if file.is_socket()]
    assert bystander.poll() is None


def test_sigquit_is_caught_and_can_be_read() -> None:
    before = signal.getsignal(signal.SIGQUIT)
    with catch_sigquit() as first:
        assert is_only_catcher()
        with catch_sigquit() as second:
            assert not is_only_catcher()
            os.kill(os.getpid(), signal.SIGQUIT)
            assert connection.wait([first, second]) == [second]
        assert connection.wait([first], timeout=0) == []
        os.kill(os.getpid(), signal.SIGQUIT)
        assert connection.wait([first]) == [first]
        for _ in range(1000):  # more than the pipe holds
            os.kill(os.getpid(), signal.SIGQUIT)
    assert signal.getsignal(signal.SIGQUIT) == before
