"""Environments and options of workers."""

from __future__ import annotations

import os

import pytest

from evalution.workers import WorkerOptions
from evalution.workers.process import THREAD_COUNTS, VISIBLE_DEVICES, make_environments
from evalution_core import ConfigurationError

CORES = 7


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CORES)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: CORES)
    for name in THREAD_COUNTS:
        monkeypatch.delenv(name, raising=False)


def test_one_worker_has_the_environment_as_it_is() -> None:
    assert make_environments(1, None) == [{}]


@pytest.mark.parametrize("workers", [2, 3, 7, 9])
def test_several_workers_share_the_cores(workers: int) -> None:
    share = dict.fromkeys(THREAD_COUNTS, str(max(1, CORES // workers)))
    assert make_environments(workers, None) == [share] * workers


def test_each_worker_sees_its_device_alone() -> None:
    found = make_environments(2, ["0,1", "GPU-5"])
    assert [environment[VISIBLE_DEVICES] for environment in found] == ["0,1", "GPU-5"]
    assert found[0]["OMP_NUM_THREADS"] == "3"
    assert make_environments(1, ["3"]) == [{VISIBLE_DEVICES: "3"}]


def test_number_of_threads_in_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert "OMP_NUM_THREADS" not in make_environments(2, None)[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"request_timeout": 0.0}, "request_timeout.*must be above 0.0, got 0.0"),
        ({"close_timeout": -1.0}, "close_timeout.*must be above 0"),
        ({"restarts": -1}, "restarts.*must be at least 0, got -1"),
        ({"restarts": "3"}, "option 'restarts' of worker options WorkerOptions"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        WorkerOptions(**options)  # pyright: ignore[reportArgumentType]
