"""The search for requests that end workers: all of them are found, and nothing else is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from evalution.workers.assignment import PoisonRequestFinder


@dataclass(eq=False, slots=True)
class Request:
    """A suspect that may stand for several, as a list call does."""

    poison: list[bool]
    crashes_alone: int = 0
    is_dropped: bool = False
    parts: list[Request] = field(default_factory=lambda: list[Request]())

    def halves(self) -> Sequence[Request]:
        if len(self.poison) < 2:
            return [self]
        half = len(self.poison) // 2
        self.parts = [Request(self.poison[:half]), Request(self.poison[half:])]
        return self.parts


def leaves(request: Request) -> list[Request]:
    return [leaf for part in request.parts for leaf in leaves(part)] or [request]


def search(poison: PoisonRequestFinder[Request]) -> tuple[list[Request], list[Request], int]:
    """Run all groups; a group with a poison request ends its worker."""
    answered: list[Request] = []
    poisonous: list[Request] = []
    deaths = 0
    while group := poison.next_group():
        if any(any(request.poison) for request in group):
            deaths += 1
            poisonous += poison.report_crash(group)
        else:
            answered += group
    return answered, poisonous, deaths


jobs = st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=40)


@given(jobs)
def test_exactly_the_poison_requests_are_found(poisons: list[list[bool]]) -> None:
    requests = [Request(poison) for poison in poisons]
    poison: PoisonRequestFinder[Request] = PoisonRequestFinder()
    poisonous = poison.report_crash(requests)
    answered, later, _ = search(poison)
    poisonous += later
    everyone = [leaf for request in requests for leaf in leaves(request)]
    assert sorted(map(id, answered + poisonous)) == sorted(map(id, everyone))
    assert all(request.poison == [True] for request in poisonous)
    assert not any(any(request.poison) for request in answered)


@given(st.integers(1, 300), st.data())
def test_one_poison_request_costs_few_workers(count: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, count - 1))
    poison: PoisonRequestFinder[Request] = PoisonRequestFinder()
    poison.report_crash([Request([index == at]) for index in range(count)])
    answered, poisonous, deaths = search(poison)
    assert len(poisonous) == 1
    assert len(answered) == count - 1
    assert deaths <= count.bit_length() + 2


def test_one_crash_alone_proves_nothing() -> None:
    poison: PoisonRequestFinder[Request] = PoisonRequestFinder()
    request = Request([False])
    assert poison.report_crash([request]) == []
    assert poison.next_group() == [request]


def test_dropped_jobs_are_not_run_again() -> None:
    poison: PoisonRequestFinder[Request] = PoisonRequestFinder()
    dropped = Request([True], is_dropped=True)
    poison.report_crash([dropped, Request([False])])
    late = Request([True])
    poison.report_crash([late])
    late.is_dropped = True
    answered, poisonous, deaths = search(poison)
    assert len(answered) == 1
    assert poisonous == []
    assert deaths == 0


def test_dropped_jobs_count_when_their_worker_crashes() -> None:
    poison: PoisonRequestFinder[Request] = PoisonRequestFinder()
    request = Request([False])
    poison.report_crash([Request([True], is_dropped=True), request])
    assert request.crashes_alone == 0
    assert poison.clear() == [request]
    assert poison.next_group() is None
