"""The search for what ends workers: guilty ones are convicted, no innocent is, none is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from evalution.workers.poison import Suspects


@dataclass(eq=False, slots=True)
class Request:
    """A suspect that may stand for several, as a list call does."""

    guilty: list[bool]
    lone_deaths: int = 0
    is_dropped: bool = False
    parts: list[Request] = field(default_factory=lambda: list[Request]())

    def halves(self) -> Sequence[Request]:
        if len(self.guilty) < 2:
            return [self]
        half = len(self.guilty) // 2
        self.parts = [Request(self.guilty[:half]), Request(self.guilty[half:])]
        return self.parts


def leaves(request: Request) -> list[Request]:
    return [leaf for part in request.parts for leaf in leaves(part)] or [request]


def search(suspects: Suspects[Request]) -> tuple[list[Request], list[Request], int]:
    """Run all groups; a group with a guilty member ends its worker."""
    answered: list[Request] = []
    convicted: list[Request] = []
    deaths = 0
    while group := suspects.next_group():
        if any(any(request.guilty) for request in group):
            deaths += 1
            convicted += suspects.accuse(group)
        else:
            answered += group
    return answered, convicted, deaths


jobs = st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=40)


@given(jobs)
def test_exactly_the_guilty_are_convicted(guilts: list[list[bool]]) -> None:
    requests = [Request(guilty) for guilty in guilts]
    suspects: Suspects[Request] = Suspects()
    convicted = suspects.accuse(requests)
    answered, later, _ = search(suspects)
    convicted += later
    everyone = [leaf for request in requests for leaf in leaves(request)]
    assert sorted(map(id, answered + convicted)) == sorted(map(id, everyone))
    assert all(request.guilty == [True] for request in convicted)
    assert not any(any(request.guilty) for request in answered)


@given(st.integers(1, 300), st.data())
def test_one_guilty_costs_few_workers(count: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, count - 1))
    suspects: Suspects[Request] = Suspects()
    suspects.accuse([Request([index == at]) for index in range(count)])
    answered, convicted, deaths = search(suspects)
    assert len(convicted) == 1
    assert len(answered) == count - 1
    assert deaths <= count.bit_length() + 2


def test_one_death_alone_is_no_proof() -> None:
    suspects: Suspects[Request] = Suspects()
    request = Request([False])
    assert suspects.accuse([request]) == []
    assert suspects.next_group() == [request]


def test_what_nobody_wants_is_not_run_again() -> None:
    suspects: Suspects[Request] = Suspects()
    dropped = Request([True], is_dropped=True)
    suspects.accuse([dropped, Request([False])])
    late = Request([True])
    suspects.accuse([late])
    late.is_dropped = True
    answered, convicted, deaths = search(suspects)
    assert len(answered) == 1
    assert convicted == []
    assert deaths == 0


def test_company_that_nobody_wants_is_company() -> None:
    suspects: Suspects[Request] = Suspects()
    request = Request([False])
    suspects.accuse([Request([True], is_dropped=True), request])
    assert request.lone_deaths == 0
    assert suspects.clear() == [request]
    assert suspects.next_group() is None
