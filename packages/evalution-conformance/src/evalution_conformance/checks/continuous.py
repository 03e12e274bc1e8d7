"""Streams of requests: bounded on both ends, never blocking, never losing one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator

import pytest

from evalution_conformance.assertions import (
    assert_failure,
    assert_refused,
    assert_same_completion,
    assert_same_text,
)
from evalution_conformance.probes import LONG_ENOUGH, PROMPTS, SENTENCE, make_mixed_requests
from evalution_conformance.subject import (
    CAP,
    Subject,
    collect_outputs,
    open_stream,
    read_one,
    require_output,
)
from evalution_conformance.suite import needs
from evalution_conformance.watch import call_within
from evalution_core import Capability, GenerationOutput, GenerationRequest, TextDelta
from evalution_core.requests import StreamEvent

_MOST_READ_AHEAD = 4 * CAP + 4
"""Running, waiting, finished and unread, and the small bound that the contract allows."""
_SETTLE_S = 0.5
_ABORT_S = 5.0
_ENDLESS = 1_000_000


class _InputError(Exception):
    """An error that a producer of requests raises."""


@needs(Capability.GENERATE)
class ContinuousChecks:
    def test_every_key_comes_once(self, subject: Subject) -> None:
        """Any hashable is a key, and each comes back once."""
        keys: list[Hashable] = [0, "0", (1, "a"), None, frozenset({2}), 2.5, b"x"]
        requests = [(key, subject.request(PROMPTS[0], max_new_tokens=2)) for key in keys]
        results = list(subject.session.generate_continuous(iter(requests)))
        assert len(results) == len(keys), f"{len(keys)} requests, {len(results)} results"
        assert {key for key, _ in results} == set(keys), "the keys that come back are others"
        for _, result in results:
            require_output(result)

    def test_a_stream_completes_as_generate_does(self, subject: Subject) -> None:
        """Outputs as those of `generate` in all fields, whatever is asked for and in any order."""
        requests = dict(enumerate(make_mixed_requests(subject)))
        found = collect_outputs(subject.session.generate_continuous(requests.items()))
        expected = subject.generate(*requests.values())
        assert found.keys() == requests.keys(), f"the keys {found.keys()} came back"
        for key, request in requests.items():
            rule = "a stream answers otherwise than generate"
            assert_same_completion(subject, request, found[key], expected[key], rule)
            assert found[key].metadata == request.metadata, "metadata was changed"

    def test_one_at_a_time_works(self, subject: Subject) -> None:
        """`batch_size=1` runs one request after the other, to the last."""
        requests = [(n, subject.request(prompt)) for n, prompt in enumerate(PROMPTS[:3])]
        found = collect_outputs(subject.session.generate_continuous(requests, batch_size=1))
        assert sorted(found) == [0, 1, 2], f"3 requests one at a time gave {sorted(found)}"

    def test_an_endless_input_is_read_little_ahead(self, subject: Subject) -> None:
        """`generate_continuous` reads ahead no more than it can run plus a small bound."""
        taken: list[int] = []
        too_far = threading.Event()

        def yield_endlessly() -> Iterator[tuple[int, GenerationRequest]]:
            for number in range(_ENDLESS):
                taken.append(number)
                if number > _MOST_READ_AHEAD + 1:
                    too_far.set()
                    return
                yield number, subject.request(PROMPTS[0], max_new_tokens=1)

        with open_stream(subject, yield_endlessly()) as stream:
            read_one(stream)
            assert not too_far.wait(_SETTLE_S), (
                f"after one result, more than {_MOST_READ_AHEAD} requests of an endless input "
                f"were taken with batch_size={CAP}"
            )

    def test_closing_early_aborts_requests_in_flight(self, subject: Subject) -> None:
        """Closed early, a stream aborts its work in flight within a step and a second."""
        request = _make_long_request(subject)
        short = subject.request(PROMPTS[0], max_new_tokens=1)
        with open_stream(
            subject, ((n, request if n else short) for n in range(_ENDLESS))
        ) as stream:
            read_one(stream)
            begun = time.monotonic()
            call_within(stream.close, timeout=subject.call_timeout, doing="closing a stream early")
            took = time.monotonic() - begun
        left = subject.session.requests_in_flight
        assert not left, f"the stream is closed and {left} requests are still in flight"
        if subject.declares(Capability.CONTINUOUS_BATCHING):
            assert took <= _ABORT_S, f"closing a stream early took {took:.1f} seconds"
        subject.complete(short)

    def test_cancelling_one_request_leaves_the_others(self, subject: Subject) -> None:
        """`cancel(key)` ends that request without a result, and the others go on."""
        long = _make_long_request(subject)
        short = subject.request(PROMPTS[1], max_new_tokens=1)
        is_taken, is_cancelled = threading.Event(), threading.Event()

        def yield_requests() -> Iterator[tuple[int, GenerationRequest]]:
            yield 0, short
            yield 1, long
            is_taken.set()
            if subject.declares(Capability.CONTINUOUS_BATCHING):
                is_cancelled.wait(subject.call_timeout)
            yield 2, short

        with open_stream(subject, yield_requests()) as stream:
            first, result = next(stream)
            require_output(result)
            assert is_taken.wait(subject.call_timeout), "the second request was never taken"
            begun = time.monotonic()
            stream.cancel(1)
            is_cancelled.set()
            keys = [first, *(key for key, _ in stream)]
            took = time.monotonic() - begun
        if first == 1:
            pytest.skip("the probe that was to be cancelled is answered first")
        assert 1 not in keys, "the request that was cancelled is answered"
        assert sorted(keys) == [0, 2], f"of the requests 0 and 2 beside it, {keys} came back"
        if subject.returns_streams and subject.declares(Capability.CONTINUOUS_BATCHING):
            assert took <= _ABORT_S, f"the stream ended {took:.1f} seconds after the cancellation"

    def test_cancelling_a_request_not_in_flight_changes_nothing(self, subject: Subject) -> None:
        """A key that is unknown, that is over, or that the input has yet to give stays as it is."""
        short = subject.request(PROMPTS[1], max_new_tokens=1)
        cancel: list[Callable[[Hashable], None]] = []
        is_open = threading.Event()

        def yield_requests() -> Iterator[tuple[int, GenerationRequest]]:
            yield 0, short
            if is_open.wait(subject.call_timeout):
                cancel[0](1)
                cancel[0]("unknown")
            yield 1, short
            yield 2, short

        with open_stream(subject, yield_requests()) as stream:
            cancel.append(stream.cancel)
            is_open.set()
            first, result = next(stream)
            require_output(result)
            stream.cancel(first)
            keys = [first, *(key for key, _ in stream)]
        assert sorted(keys) == [0, 1, 2], (
            f"1 was cancelled before the input gave it, {first} after its answer was read; of the "
            f"requests 0, 1 and 2, {keys} came back"
        )

    def test_an_unread_stream_blocks_no_other_call(self, subject: Subject) -> None:
        """The session answers other calls while a stream is open and unread."""
        requests = ((n, subject.request(PROMPTS[0])) for n in range(_ENDLESS))
        with open_stream(subject, requests) as stream:
            read_one(stream)
            output = call_within(
                lambda: subject.complete(subject.request(PROMPTS[1], max_new_tokens=2)),
                timeout=subject.call_timeout,
                doing="generate() from another thread beside an open, unread stream",
            )
            assert isinstance(output, GenerationOutput)

    def test_the_stream_runs_on_while_the_caller_is_busy(self, subject: Subject) -> None:
        """It keeps running while the caller is busy: the input is consumed on another thread."""
        third = threading.Event()

        def yield_requests() -> Iterator[tuple[int, GenerationRequest]]:
            for number in range(4 * CAP):
                if number == CAP:
                    third.set()
                yield number, subject.request(PROMPTS[0], max_new_tokens=2)

        with open_stream(subject, yield_requests()) as stream:
            read_one(stream)
            assert third.wait(subject.call_timeout), (
                "with one result read and a slot free, the next request isn't taken until the "
                "caller asks for another result"
            )

    def test_an_exception_of_the_input_is_raised(self, subject: Subject) -> None:
        """An exception of the input iterator is passed on, and the session is free again."""
        request = subject.request(PROMPTS[0])
        before = subject.complete(request)

        def yield_and_fail() -> Iterator[tuple[int, GenerationRequest]]:
            yield 0, request
            raise _InputError("planted")

        assert_refused(
            lambda: list(subject.session.generate_continuous(yield_and_fail())),
            _InputError,
            "an exception of the input",
        )
        after = subject.complete(request)
        assert_same_text(subject, request, after, before, "after the exception, text is another")

    def test_a_bad_request_is_a_value(self, subject: Subject) -> None:
        """A bad request comes as a `RequestFailure` with its key; the stream goes on."""
        good = subject.request(PROMPTS[0])
        bad = subject.request(PROMPTS[0], max_new_tokens=0, metadata={"row": 1})
        requests = [("first", good), ("bad", bad), ("last", good)]
        streams: list[Iterator[tuple[str, StreamEvent]]]
        streams = [subject.session.generate_continuous(requests)]
        if subject.declares(Capability.STREAM):
            streams.append(subject.session.stream(requests))
        for stream in streams:
            results = dict(stream)  # of deltas and an output, the output is last
            assert results.keys() == {"first", "bad", "last"}, f"only {results.keys()} came back"
            for key in ("first", "last"):
                require_output(results[key])
            assert_failure(results["bad"], {"row": 1}, "max_new_tokens=0")

    def test_the_input_may_wait_for_a_result(self, subject: Subject) -> None:
        """It works for a producer that waits for an earlier result."""
        if not subject.declares(Capability.CONTINUOUS_BATCHING):
            pytest.skip("fixed batches (without continuous_batching) need no waiting producer")
        answered = threading.Event()

        def yield_and_wait() -> Iterator[tuple[int, GenerationRequest]]:
            yield 0, subject.request(PROMPTS[0])
            if answered.wait(subject.call_timeout):
                yield 1, subject.request(PROMPTS[1])

        keys: list[int] = []
        with open_stream(subject, yield_and_wait()) as stream:
            for key, _ in stream:
                keys.append(key)
                answered.set()
        assert keys == [0, 1], (
            "the first result was kept back until the input went on, which waited for that result"
        )

    @needs(Capability.STREAM)
    def test_deltas_join_to_the_output(self, subject: Subject) -> None:
        """Deltas joined are the text of the output, which comes last, once for each request."""
        seen = subject.request(SENTENCE + PROMPTS[0])
        requests = dict(enumerate([*make_mixed_requests(subject), seen]))
        texts: dict[int, str] = dict.fromkeys(requests, "")
        ids: dict[int, list[int]] = {key: [] for key in requests}
        outputs: dict[int, GenerationOutput] = {}
        for key, event in subject.session.stream(requests.items()):
            assert key not in outputs, f"an event came after the output of request {key}"
            event = require_output(event)
            if isinstance(event, TextDelta):
                texts[key] += event.text
                ids[key] += event.token_ids
            else:
                outputs[key] = event
        assert outputs.keys() == requests.keys(), f"{outputs.keys()} have an output"
        expected = subject.generate(*requests.values())
        for key, output in outputs.items():
            assert texts[key] == output.text, f"deltas {texts[key]!r}, text {output.text!r}"
            assert output.token_ids in (None, ids[key]), f"deltas hold other ids: {ids[key]}"
            rule = "streamed text is another"
            assert_same_completion(subject, requests[key], output, expected[key], rule)

    @needs(Capability.STREAM)
    def test_a_delta_is_never_taken_back(self, subject: Subject) -> None:
        """A delta's text is final: what may be the beginning of a stop string is held back."""
        request = subject.request(PROMPTS[0], max_new_tokens=LONG_ENOUGH)
        text = subject.complete(request).text
        if len(text) < 4:
            pytest.skip("the probe is answered with less than four characters")
        stop = text[len(text) // 2 :][:3]
        stopped = subject.request(PROMPTS[0], max_new_tokens=LONG_ENOUGH, stop=[stop])
        events = [require_output(event) for _, event in subject.session.stream([(0, stopped)])]
        joined = "".join(event.text for event in events[:-1])
        assert joined == text[: text.find(stop)], (
            f"deltas before stop={stop!r} join to {joined!r}, expected {text[: text.find(stop)]!r}"
        )


def _make_long_request(subject: Subject) -> GenerationRequest:
    """Make a request that is still running when it is cancelled."""
    limit = max(1, min(2048, subject.window // 2))
    ignore_eos = subject.declares(Capability.IGNORE_EOS)
    return GenerationRequest(PROMPTS[0], max_new_tokens=limit, ignore_eos=ignore_eos)
