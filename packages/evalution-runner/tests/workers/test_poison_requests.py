"""The search for requests that end workers: all of them are found, and nothing else is lost."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from evalution.workers.assignment import PoisonRequestFinder
from evalution.workers.jobs import CallJob


@dataclass(eq=False, slots=True)
class Request(CallJob):
    is_poison: bool = False


def make_request(*, is_poison: bool = False, is_dropped: bool = False) -> Request:
    return Request(b"", is_poison=is_poison, is_dropped=is_dropped)


def search(poison: PoisonRequestFinder) -> tuple[list[Request], list[Request], int]:
    """Run all suspected jobs alone; a poison request ends its worker."""
    answered: list[Request] = []
    poisonous: list[Request] = []
    deaths = 0
    while (job := poison.next()) is not None:
        assert isinstance(job, Request)
        if job.is_poison:
            deaths += 1
            poisonous += [job] if poison.report_crash([job]) is job else []
        else:
            answered.append(job)
    return answered, poisonous, deaths


@given(st.lists(st.booleans(), min_size=2, max_size=60))
def test_exactly_the_poison_requests_are_found(poisons: list[bool]) -> None:
    requests = [make_request(is_poison=is_poison) for is_poison in poisons]
    poison = PoisonRequestFinder()
    assert poison.report_crash(requests) is None
    answered, poisonous, deaths = search(poison)
    assert sorted(map(id, answered + poisonous)) == sorted(map(id, requests))
    assert all(request.is_poison for request in poisonous)
    assert not any(request.is_poison for request in answered)
    assert deaths == 2 * len(poisonous)


def test_one_crash_alone_proves_nothing() -> None:
    poison = PoisonRequestFinder()
    request = make_request()
    assert poison.report_crash([request]) is None
    assert poison.next() is request


def test_dropped_jobs_are_not_run_again() -> None:
    poison = PoisonRequestFinder()
    dropped = make_request(is_poison=True, is_dropped=True)
    poison.report_crash([dropped, make_request()])
    late = make_request(is_poison=True)
    poison.report_crash([late])
    late.is_dropped = True
    answered, poisonous, deaths = search(poison)
    assert len(answered) == 1
    assert poisonous == []
    assert deaths == 0


def test_dropped_jobs_count_when_their_worker_crashes() -> None:
    poison = PoisonRequestFinder()
    request = make_request()
    poison.report_crash([make_request(is_poison=True, is_dropped=True), request])
    assert request.crashes_alone == 0
    assert poison.clear() == [request]
    assert poison.next() is None
