"""The request loop of serving runtimes, and the session and the loading over it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice
from typing import Any, cast

import pytest

from evalution_core import (
    EngineRuntimeError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    RequestFailure,
)
from evalution_enginekit import (
    TokenPrompt,
    TokenScore,
    TokenSpan,
)
from evalution_enginekit.serving import (
    FixedBatchRequests,
    RequestUpdate,
    ServingLoop,
)
from evalution_enginekit.serving_session import group_spans


@pytest.fixture(params=["Stepping", "Async", "Batches"])
def kind(request: pytest.FixtureRequest, toys: Any) -> Any:
    return getattr(toys, request.param)


def test_results_keep_their_order_on_every_kind_of_runtime(kind: Any, toys: Any) -> None:
    texts = ["a longer one", "b", "cc stop dd", "four", "a"]
    prompts = [GenerationRequest(text, stop=["stop"], max_new_tokens=9) for text in texts]
    pairs = [LoglikelihoodRequest(text[:1], text) for text in texts]
    runtime = kind()
    with toys.Served(runtime) as session:
        outputs = session.generate(prompts)
        assert [output.text for output in outputs] == ["a longer ", "b", "cc ", "four", "a"]
        scores = session.loglikelihood(pairs)
        assert [score.token_count for score in scores] == [len(text) for text in texts]
        expected = [[-ord(c) / 100 - at / 1000 for at, c in enumerate(t, 2)] for t in texts]
        assert [score.token_logprobs for score in scores] == [pytest.approx(e) for e in expected]
        assert not session._loop.in_flight
        assert not runtime.running


def test_refused_request_fails_alone(kind: Any, toys: Any) -> None:
    with toys.Served(kind()) as session:
        requests = [(text, GenerationRequest(text, max_new_tokens=3)) for text in ("a", "b!", "c")]
        found = dict(session.generate_continuous(requests))
        assert isinstance(found["b!"], RequestFailure)
        assert "not so loud" in str(found["b!"].error)
        assert [cast(Any, found[key]).text for key in "ac"] == ["a", "c"]


def test_answer_to_no_request_fails_the_runtime_in_place_of_a_request_that_never_ends(
    toys: Any,
) -> None:
    class Stray(toys.Stepping):
        def advance(self) -> list[RequestUpdate]:
            return [RequestUpdate("another", is_finished=True)]

    with toys.Served(Stray()) as session:
        requests = [("x", GenerationRequest("abc", max_new_tokens=3))]
        with pytest.raises(EngineRuntimeError, match="the runtime answers 'another', no request"):
            list(session.generate_continuous(requests))


def test_dead_runtime_names_requests_in_flight(kind: Any, toys: Any) -> None:
    runtime = kind()
    with toys.Served(runtime) as session:
        runtime.dead = True
        stream = session.generate_continuous([("x", GenerationRequest("abc", max_new_tokens=3))])
        with pytest.raises(EngineRuntimeError, match="the core is gone") as dead:
            list(stream)
        assert list(dead.value.in_flight) == ["x"]


def test_stop_string_aborts_the_request(toys: Any) -> None:
    runtime = toys.Stepping()
    with toys.Served(runtime) as session:
        session.generate([GenerationRequest("ab stop " + "x" * 50, stop=["stop"])])
    assert len(runtime.aborted) == 1
    assert len(runtime.batches) < 12


def test_no_name_of_a_request_begins_that_of_another(toys: Any) -> None:
    """SGLang aborts all requests whose names begin with the one that it is given."""
    runtime = toys.Stepping()
    with toys.Served(runtime) as session:
        session.generate([GenerationRequest("a stop", stop=["stop"])] * 12)
    assert len(runtime.aborted) == 12
    assert len({len(name) for name in runtime.aborted}) == 1


class Feed:
    """A feed that holds all prompts from the beginning, and cancels what the test names."""

    def __init__(self, *lengths: int):
        self.prompts = [TokenPrompt(at, [65] * n, n) for at, n in enumerate(lengths)]
        self.dropped: list[int] = []

    def on_change(self, notify: Callable[[], None]) -> None: ...

    def cancelled(self) -> list[int]:
        dropped, self.dropped = self.dropped, []
        return dropped

    def take(self, limit: int) -> list[TokenPrompt]:
        taken, self.prompts = self.prompts[:limit], self.prompts[limit:]
        return taken


def test_free_slot_is_refilled_with_the_next_step(toys: Any) -> None:
    runtime = toys.Stepping()
    loop = ServingLoop(runtime, slots=2, scored_tokens=9)
    steps = list(loop.generate(cast(Any, Feed(4, 1, 2, 1))))
    assert [sorted(event.key for event in step) for step in steps] == [
        [0, 1],
        [0, 2],
        [0, 2],
        [0, 3],
    ]
    assert not runtime.aborted


def test_cancelled_request_frees_its_slot_before_the_next_step(toys: Any) -> None:
    runtime, feed = toys.Stepping(), Feed(9, 2, 1)
    loop = ServingLoop(runtime, slots=2, scored_tokens=9)
    steps = loop.generate(cast(Any, feed))
    next(steps)
    feed.dropped = [0]
    assert sorted(event.key for event in next(steps)) == [1, 2]
    assert len(runtime.aborted) == 1
    assert list(steps) == []


def test_closed_generation_aborts_its_requests(toys: Any) -> None:
    runtime = toys.Stepping()
    loop = ServingLoop(runtime, slots=3, scored_tokens=9)
    steps = loop.generate(cast(Any, Feed(9, 9, 9)))
    next(steps)
    assert len(loop.in_flight) == 3
    cast(Any, steps).close()
    assert (len(runtime.aborted), runtime.running, loop.in_flight) == (3, {}, {})


def test_one_step_serves_generation_and_scoring(toys: Any) -> None:
    loop = ServingLoop(toys.Stepping(), slots=3, scored_tokens=9)
    generated = loop.generate(cast(Any, Feed(3)))
    scored = loop.score(group_spans([TokenSpan([1, 2], 1)], listed_limit=1))
    assert [event.key for event in next(generated)] == [0]
    (score,) = next(scored)
    assert cast(TokenScore, score).logprobs == [-0.02 - 0.001]
    assert len(list(generated)) == 2


@pytest.mark.parametrize("recovers", [True, False])
def test_failed_batch_does_not_leave_the_requests_of_the_other_side_waiting(
    toys: Any, recovers: bool
) -> None:
    runtime = toys.Batches()
    loop = ServingLoop(runtime, slots=3, scored_tokens=9)
    feed = Feed(1, 1)
    feed.prompts[0] = TokenPrompt(0, [ord("!")], 1)
    generated = loop.generate(cast(Any, feed))
    assert [event.key for event in next(generated)] == [0], "refused, and nothing has run yet"
    runtime.dead = True
    with pytest.raises(OSError, match="the core is gone"):
        list(loop.score(group_spans([TokenSpan([1, 2], 1)], listed_limit=1)))
    assert len(loop.in_flight) == 1
    runtime.dead = not recovers
    if recovers:
        ((event,),) = generated
        assert (event.key, event.error) == (1, None)
    else:
        with pytest.raises(OSError, match="the core is gone"):
            next(generated)
    assert not loop.in_flight
    assert not list(runtime.advance())


def test_batch_that_answers_too_few_of_its_requests_is_an_error() -> None:
    class Silent(FixedBatchRequests[str]):
        def __init__(self) -> None:
            super().__init__(lambda name, _: name, lambda batch: [RequestUpdate(batch[0], True)])

    loop = ServingLoop(Silent(), slots=3, scored_tokens=9)
    with pytest.raises(EngineRuntimeError, match="the runtime left 2 requests unanswered"):
        list(islice(loop.generate(cast(Any, Feed(1, 1, 1))), 9))
    assert not loop.in_flight


def test_refused_batch_is_run_again_one_by_one_without_those_that_are_answered() -> None:
    runs: list[list[str]] = []

    def run(batch: Sequence[str]) -> Iterator[RequestUpdate]:
        runs.append(list(batch))
        for name in batch:
            if name == "bad":
                raise InvalidRequestError("no bad one")
            yield RequestUpdate(name, is_finished=True)

    requests = FixedBatchRequests(lambda name, _: name, run)
    for name in ("first", "bad", "last", "late"):
        requests.generate(name, TokenPrompt(0, [1], 1))
    updates: list[RequestUpdate] = []
    for update in requests.advance():
        updates.append(update)
        requests.abort(["late"])
    assert runs == [["first", "bad", "last", "late"], ["bad"], ["last"]]
    assert [update.request_id for update in updates] == ["first", "bad", "last"]
    assert [str(update.error or "") for update in updates] == ["", "no bad one", ""]
    assert not list(requests.advance())


def test_tokens_scored_at_once_are_bounded(toys: Any) -> None:
    runtime = toys.Stepping()
    pairs = [LoglikelihoodRequest("c", "abcdefghij"[:at]) for at in (10, 9, 8, 7, 6)]
    with toys.Served(runtime, slots=8, scored_tokens=12) as session:
        session.check()
        runtime.most_scored = 0
        session.loglikelihood(pairs)
    assert 9 <= runtime.most_scored <= 12


def test_count_rows_bounds_runtimes_that_compute_more_than_is_scored(toys: Any) -> None:
    groups = group_spans([TokenSpan([1, 2, 3, 4, last], 4) for last in range(6)], listed_limit=1)
    for count, together in ((None, 6), (lambda group: len(group.fed), 2)):
        runtime = toys.Stepping()
        given = {} if count is None else {"count_rows": count}
        loop = ServingLoop(runtime, slots=8, scored_tokens=8, **given)
        assert len([score for step in loop.score(groups) for score in step]) == 6
        assert max(len(batch) for batch in runtime.batches) == together


def test_continuations_of_one_token_share_a_request(toys: Any) -> None:
    runtime = toys.Stepping()
    pairs = [LoglikelihoodRequest("Q", letter) for letter in "ABCD"]
    with toys.Served(runtime) as session:
        session.check()
        runtime.groups.clear()
        session.loglikelihood(pairs)
    assert [len(group.spans) for group in runtime.groups] == [3, 1]
    assert runtime.groups[0].inner == 0


def test_missing_scores_fail_their_spans_alone(toys: Any) -> None:
    class Forgetful(toys.Stepping):
        def advance(self) -> Iterator[RequestUpdate]:
            for update in super().advance():
                known = update.scores is None or len(update.scores) > 1
                yield update if known else RequestUpdate(update.request_id, is_finished=True)

    groups = group_spans(
        [TokenSpan([1, 2], 1), TokenSpan([1, 3], 1), TokenSpan([4, 5], 1)], listed_limit=3
    )
    found = [
        score
        for step in ServingLoop(Forgetful(), slots=4, scored_tokens=9).score(groups)
        for score in step
    ]
    assert [isinstance(score, TokenScore) for score in found] == [True, True, False]
    assert "the runtime returned scores of 0 of 1 spans" in str(found[2])


def test_update_with_an_error_aborts_the_request(toys: Any) -> None:
    class Failing(toys.Stepping):
        def advance(self) -> Iterator[RequestUpdate]:
            for name in list(self.running):
                yield RequestUpdate(name, error=EngineRuntimeError("lost"))

    runtime = Failing()
    with toys.Served(runtime) as session:
        ((_, found),) = session.generate_continuous([(0, GenerationRequest("a"))])
    assert isinstance(found, RequestFailure)
    assert len(runtime.aborted) == 1


def test_what_comes_behind_an_error_is_of_no_request(toys: Any) -> None:
    class Failing(toys.Stepping):
        def advance(self) -> Iterator[RequestUpdate]:
            for name in list(self.running):
                yield RequestUpdate(name, error=EngineRuntimeError("lost"))
                yield RequestUpdate(name, token_ids=[65])

    with toys.Served(Failing()) as session:
        found = dict(session.generate_continuous([(at, GenerationRequest("a")) for at in range(2)]))
    assert all("lost" in str(cast(Any, failure).error) for failure in found.values())


def test_async_request_that_ends_unfinished_is_an_error(toys: Any) -> None:
    class Quitting(toys.Async):
        async def _generate(self, name: str, prompt: TokenPrompt) -> AsyncIterator[RequestUpdate]:
            yield RequestUpdate(name, token_ids=prompt.token_ids[:1])

    with toys.Served(Quitting()) as session:
        ((_, found),) = session.generate_continuous([(0, GenerationRequest("ab"))])
    assert isinstance(found, RequestFailure)
    assert "ended a request without finishing it" in str(found.error)


def test_coroutine_of_the_runtime_runs_on_its_loop(toys: Any) -> None:
    runtime = toys.Async()

    async def flush() -> str:
        return "flushed"

    with toys.Served(runtime):
        assert runtime.run(flush()) == "flushed"
