"""What a session leaves unread is found again, whoever reads at that moment."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event, Thread
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from evalution import MultipleChoice
from evalution.journal.records import AnswerBase
from evalution.journal.store import KnownAnswers
from evalution.runs.in_flight import InFlightSamples, SampleSource
from evalution.suites import RequestKind, Sample
from evalution_core import LoglikelihoodOutput

ROWS = [{"q": str(i), "choices": ["x", "yy"], "right": 0} for i in range(20)]
SUITE = MultipleChoice(data=ROWS, prompt="q", choices="choices", target="right")


NOTHING = KnownAnswers("rows", AnswerBase(b"", False), None, None)


class Known(KnownAnswers):
    """Knows the answers at these keys."""

    @property
    def is_empty(self) -> bool:
        return False

    def __init__(self, *keys: tuple[int, int]):
        self.keys = set(keys)

    def find(self, sample: Sample) -> Mapping[int, Any]:
        positions = range(len(sample.requests))
        known = [p for p in positions if (sample.index, p) in self.keys]
        return {p: LoglikelihoodOutput(-1.0, True, 1) for p in known}


def source(
    store: KnownAnswers | None = None, stop: Event | None = None
) -> tuple[SampleSource, InFlightSamples]:
    in_flight = InFlightSamples(RequestKind.LOGLIKELIHOOD)
    found = SampleSource(SUITE, "rows", None, in_flight, store or NOTHING, stop or Event())
    return found, in_flight


@given(st.sets(st.tuples(st.integers(0, 19), st.integers(0, 1))))
def test_what_is_known_is_not_asked_again_and_the_rest_is(known: set[tuple[int, int]]) -> None:
    found, in_flight = source(Known(*known))
    whole = [opened.sample.index for opened in found.read_cached()]
    assert whole == [row for row in range(20) if {(row, 0), (row, 1)} <= known]
    asked = [key for key, _ in found.read_requests()]
    assert set(asked) | known == {(row, position) for row in range(20) for position in (0, 1)}
    assert not set(asked) & known
    assert found.cached_requests == len(known)
    assert {opened.sample.index for opened in in_flight.give_up_all()} == {row for row, _ in asked}


def test_answer_that_turns_up_late_leaves_one_request_to_the_session() -> None:
    # Another process may fill a shared cache between the two looks at it.
    store = Known((3, 0))
    found, _ = source(store)
    assert list(found.read_cached()) == []
    store.keys.add((3, 1))
    assert [key for key, _ in found.read_requests() if key[0] == 3] == [(3, 1)]


def test_once_stopped_nothing_more_is_given_out() -> None:
    stop = Event()
    found, _ = source(stop=stop)
    requests = found.read_requests()
    next(requests)
    stop.set()
    assert (list(requests), found.is_stopped) == ([], True)


def test_stop_after_the_last_row_cuts_nothing_short() -> None:
    stop = Event()
    found, _ = source(stop=stop)
    assert len(list(found.read_requests())) == 40
    stop.set()
    assert (list(found.read_unread()), found.is_stopped) == ([], False)


def test_stop_while_recalling_is_noticed() -> None:
    stop = Event()
    stop.set()
    found, _ = source(Known(*((row, p) for row in range(20) for p in (0, 1))), stop)
    assert (list(found.read_cached()), found.is_stopped) == ([], True)


@given(st.integers(0, 45))
def test_what_was_read_and_what_was_not_are_all_rows(read: int) -> None:
    found, in_flight = source()
    requests = found.read_requests()
    asked = [key for key, _ in (pair for _, pair in zip(range(read), requests, strict=False))]
    unread = list(found.read_unread())
    lost = in_flight.give_up_all()
    assert [opened.sample.index for opened in [*lost, *unread]] == list(range(20))
    assert {index for index, _ in asked} <= {opened.sample.index for opened in lost}
    assert all("before it read row" in str(opened.error) for opened in unread)


def test_thread_that_goes_on_reading_takes_no_row_away() -> None:
    found, in_flight = source()
    reader = Thread(target=lambda: list(found.read_requests()))
    reader.start()
    unread = [opened.sample.index for opened in found.read_unread()]
    reader.join()
    lost = [opened.sample.index for opened in in_flight.give_up_all()]
    assert sorted([*unread, *lost]) == list(range(20))
    assert list(found.read_requests()) == []
