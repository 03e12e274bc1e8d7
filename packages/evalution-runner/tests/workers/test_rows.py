"""Distributions through workers: the blocks of the session, in order, few at a time."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalution.replicas import Replicas
from evalution.workers import SupervisedSession
from evalution.workers.jobs import CallJob
from evalution.workers.rows import RowReader, RowServer
from evalution_core import (
    BaseInferenceSession,
    Capability,
    EngineRuntimeError,
    EvalutionError,
    Model,
    RequestFailure,
    UnsupportedRequestError,
)
from evalution_core.requests import DistributionRequest, DistributionRows

Build = Callable[..., SupervisedSession]
POISON, POISONED = b"poison", {"of": "a poison"}


def collect(events: Iterable[tuple[Any, Any]]) -> list[tuple[Any, ...]]:
    """Each row with its key and position, and each failure with its text and metadata."""
    found: list[tuple[Any, ...]] = []
    for key, event in events:
        if isinstance(event, RequestFailure):
            found.append((key, str(event.error), event.metadata))
        else:
            rows = event.rows.tolist()
            found += [(key, event.first + place, row) for place, row in enumerate(rows)]
    return found


def ask(number: int, length: int = 12) -> tuple[int, DistributionRequest]:
    return number, DistributionRequest(range(number, number + length), 2, {"n": number})


class InThisProcess:
    """A scheduler whose only worker serves a session of this process, and may end."""

    def __init__(self, session: BaseInferenceSession):
        self._session = session
        self.server = RowServer(session)

    def submit(self, job: CallJob) -> None:
        arguments, _ = pickle.loads(job.payload)
        if job.method == "close_rows":
            return self.server.close(*arguments)
        asked = [pickle.loads(each) for each in arguments[3]]
        if any(POISON in bytes(getattr(each, "input_ids", b"")) for each in asked):
            self.server = RowServer(self._session)
            job.fail(EngineRuntimeError("a worker that ran this request alone exited, twice"))
            return None
        try:
            found = pickle.dumps(self.server.read(*arguments), 5)
        except EvalutionError as error:
            job.fail(error)
        else:
            job.deliver(pickle.loads(found), is_last=True)
        return None

    release_call = submit

    def ensure_open(self) -> None: ...


REQUESTS = st.lists(
    st.one_of(
        st.builds(
            DistributionRequest,
            st.lists(st.integers(0, 9), min_size=2, max_size=14),
            metadata=st.dictionaries(st.text(max_size=1), st.integers(), max_size=1),
        ),
        st.just(DistributionRequest([1], 1, {"of": "a failure"})),
        st.just(DistributionRequest(list(POISON), 1, POISONED)),
        st.sampled_from(["no request", lambda: 0]),
    ),
    max_size=40,
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=REQUESTS, batch_size=st.none() | st.integers(1, 5), restarts=st.sets(st.integers()))
def test_blocks_are_those_of_the_session_and_only_what_fails_alone_fails(
    engines: Any, requests: list[Any], batch_size: int | None, restarts: set[int]
) -> None:
    session = engines.Rowing("none").build(Model("mock"))
    expected = collect(session.distributions(enumerate(requests)))
    poisoned = {n for n, each in enumerate(requests) if getattr(each, "metadata", 0) == POISONED}
    scheduler = InThisProcess(session)
    reader = RowReader(scheduler, enumerate(requests), batch_size)  # pyright: ignore[reportArgumentType]
    found: list[tuple[Any, ...]] = []
    for number, pair in enumerate(reader.read()):
        found += collect([pair])
        if number in restarts:
            scheduler.server = RowServer(session)
    for number in poisoned:
        (failure,) = (event for event in found if event[0] == number)
        assert failure[1:] == ("a worker that ran this request alone exited, twice", POISONED)
    unpicklable = {n for n, each in enumerate(requests) if callable(each)}
    lost = poisoned | unpicklable
    assert [e for e in found if e[0] not in lost] == [e for e in expected if e[0] not in lost]
    assert [e[0] for e in found] == sorted(e[0] for e in found)
    assert unpicklable == {e[0] for e in found if "can't be sent to a worker process" in str(e[1])}


def test_worker_is_one_block_ahead_and_an_early_end_closes_its_iterator(
    build: Build, engines: Any
) -> None:
    session = build(engines.Rowing())
    with pytest.raises(StopIteration):
        next(iter(session.distributions([])))
    rows = session.distributions(ask(number) for number in range(1000))
    first = next(rows)[1].rows  # pyright: ignore[reportAttributeAccessIssue]
    held = first.tolist()
    for number in range(1, 5):
        block: Any = next(rows)[1]
        assert block.first == number % 4 * engines.BLOCK
        assert session.describe_execution()["blocks"] <= number + 2
    rows.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert session.describe_execution()["closed"] == 1
    assert first.tolist() == held, "the session's memory is used again, the reader's isn't"


def test_request_that_ends_its_worker_fails_after_its_rows_and_the_others_go_on(
    build: Build, engines: Any
) -> None:
    requests = [ask(0), (1, DistributionRequest([*range(9), *POISON, 0], 2, {"n": 1})), ask(2)]
    expected = collect(engines.Rowing("none").build(Model("mock")).distributions(requests))
    session = build(engines.Rowing("exit"), backoff=0.01)
    found = collect(session.distributions(iter(requests), batch_size=1))
    (failure,) = (event for event in found if event[2] == {"n": 1})
    assert "a worker that ran this request alone exited with code 3, twice" in failure[1]
    found.remove(failure)
    lost = [event for event in expected if event not in found]
    assert {(key, position >= 12) for key, position, _ in lost} == {(1, True)}
    assert len(found) + len(lost) == len(expected)


def test_several_workers_give_no_distributions(engines: Any, stage: Any) -> None:
    assert Capability.DISTRIBUTIONS in Replicas(engines.Rowing(), 1).capabilities
    assert Capability.DISTRIBUTIONS not in Replicas(engines.Rowing(), 2).capabilities
    one, two = (
        SupervisedSession(stage(count).supervision, requests_limit=None, description={})
        for count in (1, 2)
    )
    with pytest.raises(UnsupportedRequestError, match="the worker process can't give distribu"):
        one.distributions([])
    with pytest.raises(
        UnsupportedRequestError,
        match="come in order, from one worker, and this session has 2; use `isolate: true` or one",
    ):
        two.distributions([])


def test_rows_of_another_form_are_an_error(engines: Any) -> None:
    class Doubles(BaseInferenceSession):
        def distributions(self, requests: Any, *, batch_size: int | None = None) -> Any:
            rows: Any = memoryview(bytes(8)).cast("d")
            yield 0, DistributionRows(0, rows)

    Doubles.__abstractmethods__ = frozenset()
    reader = RowReader(InThisProcess(Doubles()), [ask(0)], None)  # pyright: ignore[reportArgumentType, reportAbstractUsage]
    ((_, failure),) = reader.read()
    assert isinstance(failure, RequestFailure)
    assert "must be float32, C-contiguous and of shape (positions, vocabulary), got format 'd'" in (
        str(failure.error)
    )
