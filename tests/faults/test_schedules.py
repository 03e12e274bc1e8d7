"""The session's promises in 10,000 interleavings, and bugs that these interleavings find.

A failure prints its seed and the command that replays it.
"""

from __future__ import annotations

import pytest

from planted_bugs import MUTANTS
from scenario import run_schedule
from simulation import Scheduler, Violation, make_threading

SCHEDULES, PARTS = 10_000, 10
SCHEDULES_OF_A_BUG = 10_000

pytestmark = pytest.mark.faults


def run_schedules(seeds: range, bug: str | None = None) -> None:
    for seed in seeds:
        run_schedule(seed, bug)


@pytest.mark.parametrize("part", range(PARTS))
def test_session_keeps_its_promises_in_every_order(part: int) -> None:
    run_schedules(range(part, SCHEDULES, PARTS))


# What a violation leaves behind is thrown away in the middle of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("bug", MUTANTS)
def test_planted_bug_is_found(bug: str) -> None:
    with pytest.raises(Violation, match=r"replay: uv run python tests/faults/scenario.py \d+ "):
        run_schedules(range(SCHEDULES_OF_A_BUG), bug)


def test_same_seed_is_the_same_interleaving() -> None:
    first, second = run_schedule(77), run_schedule(77)
    assert (first.trace, first.points) == (second.trace, second.points)
    assert first.trace


def test_deadlock_is_reported_with_the_place_of_each_task() -> None:
    scheduler = Scheduler(0)
    threading = make_threading(scheduler)
    locks = [threading.Lock(), threading.Lock()]

    def take(first: int) -> None:
        with locks[first]:
            arrived.append(first)
            while len(arrived) < 2:
                scheduler.block("the other", scheduler.now + 0.01)
            with locks[1 - first]:
                pass

    arrived: list[int] = []
    for first in (0, 1):
        scheduler.spawn(lambda first=first: take(first), f"taker {first}")
    with pytest.raises(Violation, match="deadlock") as raised:
        scheduler.run()
    scheduler.stop()
    assert str(raised.value).count("waits for a lock at") == 2
    assert str(raised.value).count(" take") == 2


def test_wait_that_only_its_limit_ends_is_a_violation() -> None:
    scheduler = Scheduler(0)
    changed = make_threading(scheduler).Condition()

    def wait() -> None:
        with changed:
            changed.wait_for(lambda: False, timeout=10.0)

    scheduler.spawn(wait, "waiter")
    with pytest.raises(Violation, match="waiter waited in vain"):
        scheduler.run()
    scheduler.stop()
