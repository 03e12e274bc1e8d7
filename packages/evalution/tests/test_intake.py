"""What a session leaves unread is found again, whoever reads at that moment."""

from __future__ import annotations

from threading import Thread

from hypothesis import given
from hypothesis import strategies as st

from evalution import MultipleChoice
from evalution.intake import Intake
from evalution.ledger import Ledger
from evalution.suites import RequestKind

ROWS = [{"q": str(i), "choices": ["x", "yy"], "right": 0} for i in range(20)]
SUITE = MultipleChoice(data=ROWS, prompt="q", choices="choices", target="right")


def intake() -> tuple[Intake, Ledger]:
    ledger = Ledger(RequestKind.LOGLIKELIHOOD)
    return Intake(SUITE, "rows", None, ledger), ledger


@given(st.integers(0, 45))
def test_what_was_read_and_what_was_not_are_all_rows(read: int) -> None:
    found, ledger = intake()
    requests = found.requests()
    asked = [key for key, _ in (pair for _, pair in zip(range(read), requests, strict=False))]
    unread = list(found.unread())
    lost = ledger.unanswered()
    assert [opened.sample.index for opened in [*lost, *unread]] == list(range(20))
    assert {index for index, _ in asked} <= {opened.sample.index for opened in lost}
    assert all("before it read row" in str(opened.error) for opened in unread)


def test_a_thread_that_goes_on_reading_takes_no_row_away() -> None:
    found, ledger = intake()
    reader = Thread(target=lambda: list(found.requests()))
    reader.start()
    unread = [opened.sample.index for opened in found.unread()]
    reader.join()
    lost = [opened.sample.index for opened in ledger.unanswered()]
    assert sorted([*unread, *lost]) == list(range(20))
    assert list(found.requests()) == []
