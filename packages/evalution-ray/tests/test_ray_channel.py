"""An actor's end of the line: batches to the call that waits, calls in their order."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from evalution.workers import Progressed
from evalution_ray.actor import ActorChannel

WAIT_S = 20


def test_batch_goes_to_the_waiting_call() -> None:
    line = ActorChannel(pause=0.0)
    with ThreadPoolExecutor() as pool:
        with line.turn(0):
            pass
        call = pool.submit(line.next_batch, 0)
        line.send([Progressed((1,))])
        assert call.result(WAIT_S) == [Progressed((1,))]


def test_call_followed_by_another_returns_no_messages() -> None:
    line = ActorChannel(pause=0.0)
    with ThreadPoolExecutor() as pool:
        with line.turn(0):
            pass
        first = pool.submit(line.next_batch, 0)
        with line.turn(1):
            pass
        assert list(first.result(WAIT_S)) == []
        second = pool.submit(line.next_batch, 1)
        line.send([Progressed((2,))])
        assert second.result(WAIT_S) == [Progressed((2,))]


@given(st.permutations(range(6)))
def test_calls_are_handled_in_their_order(order: list[int]) -> None:
    line, taken = ActorChannel(pause=0.0), list[int]()

    def call(number: int) -> None:
        with line.turn(number):
            taken.append(number)

    with ThreadPoolExecutor(len(order)) as pool:
        for done in [pool.submit(call, number) for number in order]:
            done.result(WAIT_S)
    assert taken == sorted(order)


def test_no_message_is_lost_between_two_pending_calls() -> None:
    line, count = ActorChannel(pause=0.0), 200
    sender = threading.Thread(target=lambda: [line.send([Progressed((n,))]) for n in range(count)])
    sender.start()
    heard: list[int] = []
    with ThreadPoolExecutor(4) as pool:
        calls: list[Future[list[Progressed]]] = []
        number = 0

        def exchange(mine: int) -> list[Progressed]:
            with line.turn(mine):
                pass
            return list(line.next_batch(mine))  # pyright: ignore[reportReturnType]

        while len(heard) < count:
            while len(calls) < 2:
                calls.append(pool.submit(exchange, number))
                number += 1
            heard += [message.numbers[0] for message in calls.pop(0).result(WAIT_S)]
        with line.turn(number):
            pass
    sender.join(WAIT_S)
    assert heard == list(range(count))
