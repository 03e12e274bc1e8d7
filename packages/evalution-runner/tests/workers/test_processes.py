"""Real worker processes: killed, hung, poisoned, orphaned. The engines are in `worker_engines`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evalution.workers import SupervisedSession, build_supervised
from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    Model,
    RequestFailure,
    RollingLoglikelihoodRequest,
    SessionClosedError,
    TextDelta,
)

WAIT_S = 60
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

Build = Callable[..., SupervisedSession]


def ask(number: int, *, poison: bool = False) -> GenerationRequest:
    return GenerationRequest(f"{number} {'poison' if poison else ''}", max_new_tokens=2)


def answered(session: SupervisedSession, count: int, poison: int) -> dict[int, Any]:
    """All answers of a stream with one poison, which must each come once; the failed ones."""
    stream = session.generate_continuous(
        ((n, ask(n, poison=n == poison)) for n in range(count)), batch_size=4
    )
    found = list(stream)
    assert sorted(key for key, _ in found) == list(range(count))
    return {key: answer.error for key, answer in found if isinstance(answer, RequestFailure)}


# what ends a worker


@linux
def test_killed_workers_lose_no_answer(
    build: Build, engines: Any, tmp_path: Path, processes: Any
) -> None:
    session = build(engines.Troubled(folder=str(tmp_path)), workers=2)
    found: list[tuple[int, Any]] = []
    killed: set[int] = set()
    for pair in session.generate_continuous((n, ask(n)) for n in range(500)):
        found.append(pair)
        if len(killed) == 3 or len(found) < 150 * len(killed):
            continue
        living = [
            pid
            for pid in processes.builders(tmp_path)
            if pid not in killed and processes.are_running(pid)
        ]
        if living:
            os.kill(living[0], signal.SIGKILL)
            killed.add(living[0])
    assert len(killed) == 3
    assert sorted(key for key, _ in found) == list(range(500))
    assert not [answer for _, answer in found if isinstance(answer, RequestFailure)]


@linux
def test_end_of_a_worker_is_noticed_while_its_fork_holds_the_pipe(
    build: Build, engines: Any, tmp_path: Path, processes: Any
) -> None:
    engine = engines.Troubled(folder=str(tmp_path), forks=True)
    session = build(engine, heartbeat_timeout=None)
    os.kill(processes.builders(tmp_path)[0], signal.SIGKILL)
    with ThreadPoolExecutor() as pool:
        (output,) = pool.submit(session.generate, [ask(0)]).result(WAIT_S)
    assert output.finish_reason == "length"


def test_question_about_a_session_is_asked_again_on_fresh_workers(
    build: Build, engines: Any, tmp_path: Path, processes: Any
) -> None:
    session = build(engines.Undescribable(folder=str(tmp_path)))
    assert session.describe_execution()["batching"] == "continuous"
    assert len(processes.builders(tmp_path)) == 3


def test_workers_with_other_weights_are_refused(build: Build, engines: Any) -> None:
    session = build(engines.Various(), workers=2)
    with pytest.raises(ConfigurationError, match="workers differ in weights"):
        session.identity()


def test_worker_that_loads_other_weights_is_refused(build: Build, engines: Any) -> None:
    session = build(engines.Various("kill"))
    pid = session.identity()["weights"]  # pyright: ignore
    assert session.identity() == {"weights": pid}
    with pytest.raises(ConfigurationError, match="workers differ in weights"):
        list(session.generate_continuous([(0, ask(0, poison=True))]))


@posix
def test_crashing_request_is_found_with_its_stack(build: Build, engines: Any) -> None:
    failed = answered(build(engines.Troubled("crash")), 200, poison=77)
    assert failed.keys() == {77}
    error = failed[77]
    assert isinstance(error, EngineRuntimeError)
    assert "was killed by SIGSEGV, twice" in str(error)
    assert "in crash" in str(error.__cause__)
    assert error.in_flight == (77,)


@posix
@pytest.mark.slow
def test_hanging_request_is_found_with_its_stack(build: Build, engines: Any) -> None:
    session = build(engines.Troubled("hang", batch_size=2), request_timeout=2.0)
    failed = answered(session, 12, poison=5)
    assert failed.keys() == {5}
    assert "made no progress for 2 s and was killed" in str(failed[5])
    assert " in hang" in str(failed[5].__cause__)


@posix
def test_request_that_blocks_the_interpreter_is_found(build: Build, engines: Any) -> None:
    session = build(engines.Troubled("hang_with_the_lock"), heartbeat_timeout=2.0)
    (failure,) = dict(session.generate_continuous([(0, ask(0, poison=True))])).values()
    assert isinstance(failure, RequestFailure)
    assert "gave no sign of life for 2 s" in str(failure.error)
    assert " in hang_with_the_lock" in str(failure.error.__cause__)


def test_failing_session_is_replaced_before_a_request_is_blamed(
    build: Build, engines: Any, tmp_path: Path, processes: Any
) -> None:
    session = build(engines.Troubled("fail", folder=str(tmp_path)))
    failed = answered(session, 50, poison=7)
    assert failed.keys() == {7}
    assert "ValueError: planted" in str(failed[7])
    assert "twice, with this request alone" in str(failed[7])
    assert len(processes.builders(tmp_path)) == 2, "one fresh process, for the second opinion"


def test_list_call_names_the_request_that_ended_its_worker(build: Build, engines: Any) -> None:
    session = build(engines.Troubled("exit"), workers=2)
    pairs = [LoglikelihoodRequest(f"{n}", "x", metadata={"n": n}) for n in range(9)]
    outputs = session.loglikelihood(pairs)
    assert [output.metadata for output in outputs] == [{"n": n} for n in range(9)]
    pairs[4].continuation = "poison"
    with pytest.raises(EngineRuntimeError, match="exited with code 3, twice") as raised:
        session.loglikelihood(pairs)
    assert raised.value.in_flight == (4,)
    bad = [LoglikelihoodRequest("a", "") if n in (1, 8) else pairs[0] for n in range(9)]
    with pytest.raises(
        InvalidRequestError, match="2 of 9 requests refused, the others were answered"
    ) as refused:
        session.loglikelihood(bad)
    assert refused.value.failures.keys() == {1, 8}


def test_rolling_scores_are_streamed(build: Build, engines: Any) -> None:
    session = build(engines.Troubled("exit"))
    texts = ((n, RollingLoglikelihoodRequest("poison" if n == 2 else "a b")) for n in range(5))
    found = dict(session.loglikelihood_rolling_continuous(texts))
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert [key for key, value in found.items() if isinstance(value, RequestFailure)] == [2]


def test_second_answer_to_a_request_is_an_error(build: Build, engines: Any) -> None:
    session = build(engines.Doubling())
    with pytest.raises(EngineRuntimeError, match="the session answered a request twice"):
        list(session.generate_continuous((n, ask(n)) for n in range(20)))


@linux
def test_request_whose_text_was_streamed_in_part_fails_with_its_worker(
    build: Build, engines: Any, tmp_path: Path, processes: Any
) -> None:
    session = build(engines.Troubled(folder=str(tmp_path), pace=0.02))
    request = GenerationRequest("a long one", max_new_tokens=200, ignore_eos=True)
    deltas: list[TextDelta] = []
    found: object = None
    for _, event in session.stream([(0, request)]):
        if isinstance(event, TextDelta):
            if not deltas:
                os.kill(processes.builders(tmp_path)[0], signal.SIGKILL)
            deltas.append(event)
        else:
            found = event
    assert isinstance(found, RequestFailure)
    assert "after part of the text was streamed" in str(found.error)
    assert session.generate([request])[0].text.startswith(deltas[0].text)


@pytest.mark.parametrize("asked", ["describe_execution", "identity"])
def test_unreadable_answer_to_a_call_is_its_error(build: Build, engines: Any, asked: str) -> None:
    session = build(engines.Unreadable())
    text = "^the worker's answer can't be read: ValueError: planted: not in this process$"
    with pytest.raises(EngineRuntimeError, match=text):
        getattr(session, asked)()
    assert len(session.generate([ask(0)])) == 1


def test_unpicklable_request_fails_alone(build: Build, engines: Any) -> None:
    session = build(engines.Troubled())
    odd = GenerationRequest("a", stop=[lambda: None], metadata={"n": 1})  # pyright: ignore
    found = dict(session.generate_continuous([(0, ask(0)), (1, odd), (2, ask(2))]))
    failure = found[1]
    assert isinstance(failure, RequestFailure)
    assert isinstance(failure.error, InvalidRequestError)
    assert "can't be sent to a worker process" in str(failure.error)
    assert failure.metadata == {"n": 1}
    assert not isinstance(found[2], RequestFailure)


def test_metadata_is_not_sent_to_the_worker(build: Build, engines: Any) -> None:
    session = build(engines.Troubled())
    lock = threading.Lock()
    request = GenerationRequest("a", max_new_tokens=1, metadata={"lock": lock})
    (output,) = session.generate([request])
    ((_, streamed),) = session.generate_continuous([(0, request)])
    assert output.metadata["lock"] is streamed.metadata["lock"] is lock
    assert request.metadata == {"lock": lock}


# building


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("refuse", ConfigurationError, "^planted: no such model$"),
        ("fail", EngineRuntimeError, "^building the session: ValueError: planted: foreign$"),
    ],
)
def test_failed_build_is_reported_and_not_tried_again(
    build: Build,
    engines: Any,
    tmp_path: Path,
    how: str,
    kind: type[Exception],
    text: str,
    processes: Any,
) -> None:
    with pytest.raises(kind, match=text):
        build(engines.Unbuildable(how, folder=str(tmp_path)))
    assert len(processes.builders(tmp_path)) == 1


def test_worker_that_dies_while_loading_is_started_again(
    build: Build, engines: Any, tmp_path: Path, processes: Any
) -> None:
    session = build(engines.Unbuildable("once", folder=str(tmp_path)), workers=2, backoff=0.0)
    assert len(processes.builders(tmp_path)) == 3
    (answer,) = session.generate([ask(0)])
    assert answer.finish_reason == "length"


def test_worker_that_dies_at_every_loading_is_given_up(
    build: Build, engines: Any, tmp_path: Path, processes: Any
) -> None:
    text = "2 times in a row .*; the last one exited with code 3 while it loaded the model"
    with pytest.raises(EngineRuntimeError, match=text):
        build(engines.Unbuildable("exit", folder=str(tmp_path)), restarts=1, backoff=0.0)
    assert len(processes.builders(tmp_path)) == 2


@posix
def test_build_has_a_deadline(build: Build, engines: Any) -> None:
    text = "had not loaded the model after 5 s and was killed"
    with pytest.raises(EngineRuntimeError, match=text):
        build(engines.Unbuildable("hang"), build_timeout=5.0)


@linux
def test_session_whose_workers_can_not_be_built_again_ends(
    build: Build, engines: Any, tmp_path: Path, processes: Any
) -> None:
    session = build(engines.Unbuildable("later", folder=str(tmp_path)), restarts=1, backoff=0.0)
    os.kill(processes.builders(tmp_path)[0], signal.SIGKILL)
    with pytest.raises(EngineRuntimeError, match=r"2 times in a row .*: planted: only once"):
        list(session.generate_continuous((n, ask(n)) for n in range(10)))
    with pytest.raises(EngineRuntimeError, match="2 times in a row"):
        session.generate([ask(0)])
    session.close()
    with pytest.raises(SessionClosedError, match="is closed; build a new session"):
        session.generate([ask(0)])


def test_unpicklable_option_or_field_is_named(build: Build, engines: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"option 'callback' of engine Unpicklable, a "):
        build(engines.Unpicklable(callback=lambda: None))
    model = Model("mock", tokenizer=threading.Lock())
    with pytest.raises(
        ConfigurationError, match="field 'tokenizer' of the model, a lock, can't be"
    ):
        build_supervised(engines.Troubled(), model)
