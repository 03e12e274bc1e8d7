"""Devices and cores of workers, and what is read out of their stack dumps."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.workers import WorkerOptions
from evalution.workers import process as placement
from evalution.workers.process import THREAD_COUNTS, VISIBLE_DEVICES, innermost, places
from evalution_core import ConfigurationError

CORES = 7


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_cores", lambda: list(range(100, 100 + CORES)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None, raising=False)
    for name in THREAD_COUNTS:
        monkeypatch.delenv(name, raising=False)


def test_one_worker_has_all() -> None:
    (place,) = places(1, None)
    assert place.environment == {}
    assert place.cores is None


@pytest.mark.parametrize("workers", [2, 3, 7, 9])
def test_cores_are_divided(workers: int) -> None:
    found = places(workers, None)
    cores = [core for place in found for core in place.cores or ()]
    assert sorted(cores) == list(range(100, 100 + CORES)), "each core once"
    sizes = [len(place.cores or ()) for place in found]
    assert max(sizes) - min(sizes) <= 1
    for place, size in zip(found, sizes, strict=True):
        assert place.environment == dict.fromkeys(THREAD_COUNTS, str(max(1, size)))


def test_each_worker_sees_its_device_alone() -> None:
    found = places(2, ["0,1", "GPU-5"])
    assert [place.environment[VISIBLE_DEVICES] for place in found] == ["0,1", "GPU-5"]
    assert [place.cores for place in found] == [None, None]
    assert found[0].environment["OMP_NUM_THREADS"] == "3"
    assert places(1, ["3"])[0].environment == {VISIBLE_DEVICES: "3"}


def test_a_number_of_threads_that_was_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert "OMP_NUM_THREADS" not in places(2, None)[0].environment


DUMP = """Timeout (0:00:02)!
Thread 0x0001 (most recent call first):
  File "/python/threading.py", line 327 in wait
  File "/site/evalution/workers/wire.py", line 213 in _run

Thread 0x0002 (most recent call first):
  File "/python/threading.py", line 629 in wait
  File "/site/acme/kernel.py", line 12 in launch
  File "/site/evalution_enginekit/runtime_thread.py", line 155 in _run
"""


def test_a_dump_says_where_the_work_stood() -> None:
    assert innermost(DUMP) == "launch (/site/acme/kernel.py:12)"
    assert innermost(DUMP.partition("\n\n")[0]) is None


def test_of_a_crash_the_thread_that_crashed_is_told() -> None:
    busy = 'Thread 0x1 (most recent call first):\n  File "/kit/pulled_stream.py", line 7 in _pulled'
    crashed = (
        'Current thread 0x2 (most recent call first):\n  File "/site/acme/kernel.py", line 9 in go'
    )
    fatal = f"Fatal Python error: Segmentation fault\n\n{busy}\n\n{crashed}\n"
    assert innermost(fatal) == "go (/site/acme/kernel.py:9)"
    nowhere = "Current thread 0x2 (most recent call first):\n  <no Python frame>"
    assert innermost(f"Fatal Python error: Segmentation fault\n\n{busy}\n\n{nowhere}\n") is None
    # A dump that was asked for comes from the thread that the signal reached, whichever it was.
    assert innermost(f"{busy}\n\n{crashed}\n") == "_pulled (/kit/pulled_stream.py:7)"


@given(st.text())
def test_any_text_may_stand_in_a_dump(text: str) -> None:
    assert isinstance(innermost(text), str | None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"request_timeout": 0.0}, "request_timeout must be a number of seconds above 0.*got 0.0"),
        ({"close_timeout": -1.0}, "close_timeout must be a number of seconds above 0"),
        ({"restarts": -1}, "restarts must be at least 0, got -1"),
        ({"restarts": "3"}, "option 'restarts' of worker options WorkerOptions"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        WorkerOptions(**options)  # pyright: ignore[reportArgumentType]
