"""The loop of serving runtimes, on the toys of `serving_toys`, through a session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest

from evalution_core import (
    EngineRuntimeError,
    GenerationRequest,
    LoglikelihoodRequest,
    RequestFailure,
)
from evalution_enginekit import (
    TokenPrompt,
    TokenScore,
    TokenSpan,
)
from evalution_enginekit.serving import RequestUpdate, ServingLoop, span_groups


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `serving_toys`: a runtime of each form, and the session over one."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return import_module("serving_toys")


@pytest.fixture(params=["Stepping", "Async", "Batches"])
def form(request: pytest.FixtureRequest, toys: Any) -> Any:
    return getattr(toys, request.param)


def test_every_form_keeps_the_order_and_the_requests_apart(form: Any, toys: Any) -> None:
    texts = ["a longer one", "b", "cc stop dd", "four", "a"]
    prompts = [GenerationRequest(text, stop=["stop"], max_new_tokens=9) for text in texts]
    pairs = [LoglikelihoodRequest(text[:1], text) for text in texts]
    runtime = form()
    with toys.Served(runtime) as session:
        outputs = session.generate(prompts)
        assert [output.text for output in outputs] == ["a longer ", "b", "cc ", "four", "a"]
        scores = session.loglikelihood(pairs)
        assert [score.token_count for score in scores] == [len(text) for text in texts]
        expected = [[-ord(c) / 100 - at / 1000 for at, c in enumerate(t, 2)] for t in texts]
        assert [score.token_logprobs for score in scores] == [pytest.approx(e) for e in expected]
        assert not session.loop.in_flight
        assert not runtime.running


def test_a_refused_request_is_a_value_and_costs_no_other(form: Any, toys: Any) -> None:
    with toys.Served(form()) as session:
        requests = [(text, GenerationRequest(text, max_new_tokens=3)) for text in ("a", "b!", "c")]
        found = dict(session.generate_continuous(requests))
        assert isinstance(found["b!"], RequestFailure)
        assert "not so loud" in str(found["b!"].error)
        assert [cast(Any, found[key]).text for key in "ac"] == ["a", "c"]


def test_a_dead_runtime_names_what_was_in_flight(form: Any, toys: Any) -> None:
    runtime = form()
    with toys.Served(runtime) as session:
        runtime.dead = True
        stream = session.generate_continuous([("x", GenerationRequest("abc", max_new_tokens=3))])
        with pytest.raises(EngineRuntimeError, match="the core is gone") as dead:
            list(stream)
        assert list(dead.value.in_flight) == ["x"]


def test_a_stop_string_ends_the_request_at_the_runtime(toys: Any) -> None:
    runtime = toys.Stepping()
    with toys.Served(runtime) as session:
        session.generate([GenerationRequest("ab stop " + "x" * 50, stop=["stop"])])
    assert len(runtime.aborted) == 1
    assert len(runtime.batches) < 12


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


def test_a_free_slot_is_taken_with_the_next_step(toys: Any) -> None:
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


def test_what_the_feed_cancels_leaves_the_runtime_before_the_next_step(toys: Any) -> None:
    runtime, feed = toys.Stepping(), Feed(9, 2, 1)
    loop = ServingLoop(runtime, slots=2, scored_tokens=9)
    steps = loop.generate(cast(Any, feed))
    next(steps)
    feed.dropped = [0]
    assert sorted(event.key for event in next(steps)) == [1, 2]
    assert len(runtime.aborted) == 1
    assert list(steps) == []


def test_generation_that_is_dropped_leaves_nothing_at_the_runtime(toys: Any) -> None:
    runtime = toys.Stepping()
    loop = ServingLoop(runtime, slots=3, scored_tokens=9)
    steps = loop.generate(cast(Any, Feed(9, 9, 9)))
    next(steps)
    assert len(loop.in_flight) == 3
    cast(Any, steps).close()
    assert (len(runtime.aborted), runtime.running, loop.in_flight) == (3, {}, {})


def test_scores_and_tokens_of_one_step_find_their_way(toys: Any) -> None:
    loop = ServingLoop(toys.Stepping(), slots=3, scored_tokens=9)
    generated = loop.generate(cast(Any, Feed(3)))
    scored = loop.score(span_groups([TokenSpan([1, 2], 1)], listed_limit=1))
    assert [event.key for event in next(generated)] == [0]
    (score,) = next(scored)
    assert cast(TokenScore, score).logprobs == [-0.02 - 0.001]
    assert len(list(generated)) == 2


def test_scored_tokens_in_the_making_are_bounded(toys: Any) -> None:
    runtime = toys.Stepping()
    pairs = [LoglikelihoodRequest("c", "abcdefghij"[:at]) for at in (10, 9, 8, 7, 6)]
    with toys.Served(runtime, slots=8, scored_tokens=12) as session:
        session.check()
        runtime.most_scored = 0
        session.loglikelihood(pairs)
    assert 9 <= runtime.most_scored <= 12


def test_a_runtime_that_computes_more_rows_than_are_scored_says_how_many(toys: Any) -> None:
    groups = span_groups([TokenSpan([1, 2, 3, 4, last], 4) for last in range(6)], listed_limit=1)
    for load, together in ((None, 6), (lambda group: len(group.fed), 2)):
        runtime = toys.Stepping()
        given = {} if load is None else {"load": load}
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


def test_scores_that_are_missing_fail_their_spans_alone(toys: Any) -> None:
    class Forgetful(toys.Stepping):
        def advance(self) -> Iterator[RequestUpdate]:
            for update in super().advance():
                known = update.scores is None or len(update.scores) > 1
                yield update if known else RequestUpdate(update.request_id, is_finished=True)

    groups = span_groups(
        [TokenSpan([1, 2], 1), TokenSpan([1, 3], 1), TokenSpan([4, 5], 1)], listed_limit=3
    )
    found = [
        score
        for step in ServingLoop(Forgetful(), slots=4, scored_tokens=9).score(groups)
        for score in step
    ]
    assert [isinstance(score, TokenScore) for score in found] == [True, True, False]
    assert "1 spans were asked for and 0 came" in str(found[2])


def test_an_update_with_an_error_ends_the_request_at_the_runtime(toys: Any) -> None:
    class Failing(toys.Stepping):
        def advance(self) -> Iterator[RequestUpdate]:
            for name in list(self.running):
                yield RequestUpdate(name, error=EngineRuntimeError("lost"))

    runtime = Failing()
    with toys.Served(runtime) as session:
        ((_, found),) = session.generate_continuous([(0, GenerationRequest("a"))])
    assert isinstance(found, RequestFailure)
    assert len(runtime.aborted) == 1


def test_an_async_request_that_ends_unfinished_is_an_error(toys: Any) -> None:
    class Quitting(toys.Async):
        async def _generate(self, name: str, prompt: TokenPrompt) -> AsyncIterator[RequestUpdate]:
            yield RequestUpdate(name, token_ids=prompt.token_ids[:1])

    with toys.Served(Quitting()) as session:
        ((_, found),) = session.generate_continuous([(0, GenerationRequest("ab"))])
    assert isinstance(found, RequestFailure)
    assert "ended a request without finishing it" in str(found.error)


def test_a_coroutine_of_the_runtime_runs_on_its_loop(toys: Any) -> None:
    runtime = toys.Async()

    async def flush() -> str:
        return "flushed"

    with toys.Served(runtime):
        assert runtime.run(flush()) == "flushed"
