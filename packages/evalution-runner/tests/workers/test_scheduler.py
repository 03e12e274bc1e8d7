"""The scheduler over workers that are played: whatever ends, each request is answered once."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.workers.assignment import SlotState
from evalution.workers.jobs import CallJob, PooledStream, StreamItem, make_call_job
from evalution.workers.wire import (
    Abort,
    BuildFailed,
    Item,
    Open,
    Progressed,
    Ready,
    Result,
    StreamEnded,
    pack_error,
)
from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    RequestFailure,
    SessionClosedError,
    SessionInfo,
)
from evalution_core.kinds import RequestKind


@given(
    st.integers(1, 3),
    st.sets(st.integers(0, 39), max_size=6),
    st.sampled_from([None, 1, 2, 7]),
    st.integers(0, 2**32),
)
def test_every_request_is_answered_once(
    stage: Any, workers: int, poisons: set[int], batch_size: int | None, seed: int
) -> None:
    chance = random.Random(seed)
    play = stage(workers, poisons=poisons)
    stream = play.stream(batch_size, run=chance.randint(1, 8))
    source = iter(range(40))
    for _ in range(10_000):
        play.feed(stream, source)
        if stream.input_ended and not stream._open:
            break
        if alive := play.alive:
            worker = chance.choice(alive)
            # A lone request whose worker ends twice is poisonous, rightly or not.
            if worker.held > 1 and chance.random() < 0.1:
                worker.end("was killed from outside")
            else:
                worker.step(chance)
        play.restart()
    answers = list(stream.results())
    assert sorted(key for key, _ in answers) == list(range(40))
    failed = {key for key, answer in answers if isinstance(answer, RequestFailure)}
    assert failed == poisons
    assert all(a.text == f"answer {k}" for k, a in answers if k not in failed)


def test_work_goes_to_the_worker_that_is_free(stage: Any) -> None:
    play, chance = stage(2), random.Random(0)
    stream = play.stream()
    source = iter(range(100))
    busy, free = play.alive
    while not stream.input_ended:
        play.feed(stream, source)
        free.step(chance)
    busy.read()
    assert busy.given == stage.cap, "a worker that takes nothing is sent no more than waits for it"
    assert free.given == 100 - stage.cap


def test_cap_is_shared_out(stage: Any) -> None:
    play = stage(2)
    play.feed(play.stream(batch_size=3), iter(range(100)))
    for worker, share in zip(play.alive, (2, 1), strict=True):
        opened = [message for message in worker.inbox if isinstance(message, Open)]
        assert [message.batch_size for message in opened] == [share]


def test_neighbours_go_to_one_worker(stage: Any) -> None:
    play = stage(2)
    play.feed(play.stream(run=2), iter(range(4)))
    for worker, expected in zip(play.alive, ([0, 1], [2, 3]), strict=True):
        items = [m for m in worker.inbox if isinstance(m, Item)]
        assert [pickle.loads(item.payload) for item in items] == expected


def test_nothing_is_placed_while_too_much_is_unread(stage: Any) -> None:
    play, chance = stage(1), random.Random(0)
    stream = PooledStream(
        play.scheduler.lock, RequestKind.GENERATION, batch_size=2, unread_bound=2, run=1
    )
    play.scheduler.open(stream)
    source = iter(range(100))
    for _ in range(50):
        play.feed(stream, source)
        play.alive[0].step(chance)
    assert play.alive[0].given < 10
    results = stream.results()
    next(results)
    next(results)
    next(results)
    play.feed(stream, source)
    play.alive[0].read()
    assert next(source) < 20


def test_item_that_was_taken_while_answers_came_is_placed(stage: Any) -> None:
    """The source took its time for it, and meanwhile too much became unread."""
    play, chance = stage(1), random.Random(0)
    stream = PooledStream(
        play.scheduler.lock, RequestKind.GENERATION, batch_size=2, unread_bound=1, run=1
    )
    play.scheduler.open(stream)
    (worker,) = play.alive
    for number in range(2):
        assert play.scheduler.wait_for_room(stream)
        if number:
            worker.step(chance)
        item = StreamItem(pickle.dumps(number), stream=stream, key=number)
        play.scheduler.place(stream, item)
    play.scheduler.end_input(stream)
    worker.step(chance)
    assert [key for key, _ in stream.results()] == [0, 1]


def test_calls_are_answered_by_any_worker(stage: Any) -> None:
    play = stage(2)
    jobs = [make_call_job("identity") for _ in range(2)]
    for job in jobs:
        play.scheduler.submit(job)
    for worker in play.alive:
        worker.step(random.Random(0))
    assert [job.result.result(0) for job in jobs] == ["identity", "identity"]


def test_question_about_a_session_outlives_four_workers(stage: Any) -> None:
    play = stage(1)
    job = make_call_job("describe_execution")
    play.scheduler.submit(job)
    for _ in range(5):
        assert not job.result.done()
        (worker,) = play.alive
        worker.end("was killed by SIGKILL")
        play.restart()
    text = "a worker that was asked about its session was killed by SIGKILL, 5 times"
    assert str(job.result.exception(timeout=0)) == text


def test_request_without_progress_ends_its_worker(stage: Any) -> None:
    play, chance = stage(1), random.Random(0)
    stream = play.stream()
    play.feed(stream, iter(range(2)))
    (first,) = play.made
    first.read()
    play.pass_time(11)
    assert not first.is_gone, "what waits for the session isn't late"
    taken = next(item.number for item in first.worker_streams[0].items)
    first.listener.received([Progressed((taken,))])
    play.pass_time(9)
    assert not first.is_gone
    play.pass_time(2)
    assert first.is_gone
    play.restart()
    play.alive[0].step(chance)


def test_request_that_waits_in_the_session_is_late_only_with_its_stream(stage: Any) -> None:
    play, chance = stage(1), random.Random(0)
    stream = play.stream()
    play.feed(stream, iter(range(3)))
    (worker,) = play.made
    worker.read()
    taken = tuple(item.number for item in worker.worker_streams[0].items)
    worker.listener.received([Progressed(taken)])
    play.pass_time(9)
    worker.step(chance)  # one is answered, another seen at work
    play.pass_time(9)
    assert not worker.is_gone, "the third waits for the others"
    play.pass_time(2)
    assert worker.is_gone


def test_silent_worker_is_ended(stage: Any) -> None:
    play = stage(1)
    play.pass_time(100)
    assert not play.made[0].is_gone
    play.made[0].listener.received([])
    play.pass_time(100)
    assert not play.made[0].is_gone
    play.pass_time(100)
    assert play.made[0].is_gone


def test_workers_of_other_windows_are_refused_also_after_a_restart(stage: Any) -> None:
    play = stage(2)
    (slot, _) = play.scheduler.slots
    info = SessionInfo(frozenset(), 7)
    play.alive[0].end("was killed by SIGKILL")
    play.scheduler.now += 1
    play.supervision._start_workers()
    play.worker(slot).listener.received([Ready(info, None)])
    with pytest.raises(EngineRuntimeError, match=r"windows of 7 and None tokens.*set max_model"):
        play.scheduler.ensure_open()


def test_worker_that_answers_with_other_files_after_a_restart_gets_no_work(stage: Any) -> None:
    play = stage(2)
    first = {"identity": {"a": "1", "b": "1"}, "execution": {"dtype": "float32"}}
    play.scheduler.compare_answerer(first)
    (slot, _) = play.scheduler.slots
    for identity in (None, first["identity"], {"a": "2", "b": "1"}):
        play.worker(slot).end("was killed by SIGKILL")
        slot.restart_at = 0.0
        play.restart()
        assert slot.state is SlotState.BUILDING
        worker = play.worker(slot)
        worker.read()
        answer = pickle.dumps({**first, "identity": identity})
        worker.listener.received([Result(worker.calls.pop().number, answer)])
        assert slot.state is SlotState.READY
        assert (play.scheduler.failure is None) is (identity != {"a": "2", "b": "1"})
    assert slot.fruitless_ends == 3
    with pytest.raises(EngineRuntimeError, match=r"workers differ in a, so .*; give all the same"):
        play.scheduler.ensure_open()


def test_slot_is_given_up_and_then_the_session(stage: Any) -> None:
    play = stage(2, restarts=1)
    stream = play.stream()
    play.feed(stream, iter(range(100)))
    job: CallJob = make_call_job("identity")
    for _ in range(2):
        for worker in play.alive:
            worker.end("was killed by SIGKILL")
        play.supervision._start_workers()
        for worker in play.alive:
            error = pack_error(ConfigurationError("no such model"), "build")
            worker.listener.received([BuildFailed(error)])
            worker.end("exited with code 0")
        play.pass_time(1_000_000)
    with pytest.raises(EngineRuntimeError, match=r"2 times in a row.*no such model") as raised:
        list(stream.results())
    assert raised.value.in_flight
    with pytest.raises(EngineRuntimeError, match="2 times in a row"):
        play.scheduler.submit(job)


def test_restarts_in_a_row_wait_longer_and_longer(stage: Any) -> None:
    play = stage(1, restarts=4)
    waits: list[float] = []
    for _ in range(4):
        play.alive[0].end("was killed by SIGKILL")
        (slot,) = play.scheduler.slots
        waits.append(slot.restart_at - play.scheduler.now)
        play.restart()
    assert waits == [0.0, 0.5, 1.0, 2.0]


def test_error_of_the_session_itself_ends_the_stream(stage: Any) -> None:
    play = stage(2)
    stream = play.stream()
    play.feed(stream, iter(range(10)))
    first, second = play.alive
    second.read()
    error = pack_error(ConfigurationError("the self check failed"), "scoring")
    first.listener.received([StreamEnded(0, error)])
    with pytest.raises(ConfigurationError, match="the self check failed"):
        list(stream.results())
    assert Abort(0) in second.inbox


def test_session_that_drops_a_request_is_reported(stage: Any) -> None:
    play = stage(1)
    stream = play.stream()
    play.feed(stream, iter(range(2)))
    play.alive[0].listener.received([StreamEnded(0)])
    answers = dict(stream.results())
    assert sorted(answers) == [0, 1]
    for answer in answers.values():
        assert isinstance(answer, RequestFailure)
        assert "without an answer" in str(answer.error)


def test_closing_ends_what_is_open(stage: Any) -> None:
    play = stage(1)
    stream = play.stream()
    play.feed(stream, iter(range(100)))
    with play.scheduler.lock:
        play.scheduler.is_closing = True
        play.scheduler.shut_down(SessionClosedError("the session was closed meanwhile"))
    with pytest.raises(SessionClosedError, match="closed meanwhile"):
        list(stream.results())
