"""Faults of streams: what is read, kept, lost, blocked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from evalution_conformance.subject import require_output
from evalution_core import (
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    RequestStream,
    TextDelta,
)
from evalution_enginekit import PromptQueue, TokenEvent
from mutants.catalogue import session_fault
from mutants.toy import ToySession

Requests = Iterable[tuple[Any, GenerationRequest]]
Results = Iterator[tuple[Any, GenerationOutput | RequestFailure]]


@session_fault("test_every_key_comes_once")
class YieldsTheFirstTwice(ToySession):
    """A result comes twice."""

    def generate_continuous(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        results = super().generate_continuous(requests, batch_size=batch_size)
        for first in islice(results, 1):
            yield first
            yield first
        yield from results


@session_fault("test_every_key_comes_once")
class SpellsKeys(ToySession):
    """Keys come back as strings."""

    def generate_continuous(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        for key, result in super().generate_continuous(requests, batch_size=batch_size):
            yield str(key), result


@session_fault("test_a_stream_completes_as_generate_does")
class StripsInStreams(ToySession):
    """Streams post-process text that `generate` leaves alone."""

    def generate_continuous(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        for key, result in super().generate_continuous(requests, batch_size=batch_size):
            if isinstance(result, GenerationOutput):
                result = replace(result, text=result.text.strip()[1:])
            yield key, result


@session_fault("test_one_at_a_time_works")
class LosesTheRest(ToySession):
    """With one slot, what comes after the first request is lost."""

    def generate_continuous(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        return super().generate_continuous(
            islice(requests, batch_size if batch_size == 1 else None), batch_size=batch_size
        )


@session_fault("test_an_endless_input_is_read_little_ahead")
class ReadsTheWholeInput(ToySession):
    """The whole input is read before anything runs."""

    def generate_continuous(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        yield from super().generate_continuous(list(requests), batch_size=batch_size)


@session_fault("test_closing_early_aborts_requests_in_flight")
class IgnoresAbort(ToySession):
    """A stream that is closed runs on to its end."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._abandoned: list[Results] = []

    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        for events in super()._generate_tokens(feed):
            time.sleep(0.02)  # a runtime that takes its time
            yield events

    def generate_continuous(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        results = super().generate_continuous(requests, batch_size=batch_size)
        self._abandoned.append(results)
        for result in results:  # noqa: UP028 - `yield from` would close it too
            yield result


class _Wrapped(RequestStream[Any, Any]):
    """A stream in which cancelling means something else."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __next__(self) -> Any:
        return next(self._stream)

    def close(self) -> None:
        self._stream.close()


class _Uncancelled(_Wrapped):
    def cancel(self, key: Any) -> None:
        pass


class _Ended(_Wrapped):
    def cancel(self, key: Any) -> None:
        self._stream.close()


@session_fault("test_cancelling_one_request_leaves_the_others")
class IgnoresCancellation(ToySession):
    """A request that is cancelled is answered all the same."""

    def generate_continuous(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        return _Uncancelled(super().generate_continuous(requests, batch_size=batch_size))


@session_fault("test_cancelling_one_request_leaves_the_others")
class CancelsTheWholeStream(ToySession):
    """Cancelling one request ends the stream for all."""

    def generate_continuous(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        return _Ended(super().generate_continuous(requests, batch_size=batch_size))


class _Strict(_Wrapped):
    def cancel(self, key: Any) -> None:
        raise KeyError(key)


class _Foreseen(_Wrapped):
    def __init__(self, stream: Any, dropped: set[Any]):
        super().__init__(stream)
        self._dropped = dropped

    def cancel(self, key: Any) -> None:
        self._dropped.add(key)


@session_fault("test_cancelling_a_request_not_in_flight_changes_nothing")
class RemembersWhatWasCancelled(ToySession):
    """A key that was cancelled is dropped when the input gives it."""

    def generate_continuous(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        dropped: set[Any] = set()
        kept = (pair for pair in requests if pair[0] not in dropped)
        return _Foreseen(super().generate_continuous(kept, batch_size=batch_size), dropped)


@session_fault("test_cancelling_a_request_not_in_flight_changes_nothing")
class RaisesForUnknownKeys(ToySession):
    """A key that isn't under way can't be cancelled."""

    def generate_continuous(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        return _Strict(super().generate_continuous(requests, batch_size=batch_size))


@session_fault("test_an_unread_stream_blocks_no_other_call")
class HoldsItsLock(ToySession):
    """A lock is held while the caller has a result in hand."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._lock = threading.RLock()

    def generate(
        self, requests: Sequence[GenerationRequest], *, batch_size: int | None = None
    ) -> list[GenerationOutput]:
        with self._lock:
            return super().generate(requests, batch_size=batch_size)

    def generate_continuous(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        with self._lock:
            yield from super().generate_continuous(requests, batch_size=batch_size)


@session_fault(
    "test_the_stream_runs_on_while_the_caller_is_busy",
    "test_the_input_may_wait_for_a_result",
    "test_a_bad_request_is_a_value",
)
class RunsWhenAsked(ToySession):
    """A stream is `generate` over slices of the input, on the caller's own thread."""

    def generate_continuous(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        source = iter(requests)
        while slice_ := list(islice(source, batch_size or 4)):
            outputs = self.generate([request for _, request in slice_])
            yield from zip((key for key, _ in slice_), outputs, strict=True)


@session_fault("test_an_exception_of_the_input_is_raised")
class SwallowsErrorsOfTheInput(ToySession):
    """An exception of the input iterator ends the stream as if it were complete."""

    def _note_requests(self, requests: Any, known: Any) -> Iterator[Any]:
        try:
            yield from super()._note_requests(requests, known)
        except Exception:  # noqa: BLE001 - the fault
            return


@session_fault("test_a_bad_request_is_a_value")
class EndsAtABadRequest(ToySession):
    """One bad request ends the stream for all."""

    def generate_continuous(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        for key, result in super().generate_continuous(requests, batch_size=batch_size):
            if isinstance(result, RequestFailure):
                raise result.error
            yield key, result


@session_fault("test_deltas_join_to_the_output")
class StripsDeltas(ToySession):
    """Deltas lose the whitespace at their ends."""

    def stream(self, requests: Requests, *, batch_size: int | None = None) -> Iterator[Any]:
        for key, event in super().stream(requests, batch_size=batch_size):
            if isinstance(event, TextDelta):
                event = TextDelta(event.text.strip(), event.token_ids)
            yield key, event


@session_fault("test_deltas_join_to_the_output")
class FinishesTwice(ToySession):
    """A request's output comes twice."""

    def stream(self, requests: Requests, *, batch_size: int | None = None) -> Iterator[Any]:
        for key, event in super().stream(requests, batch_size=batch_size):
            yield key, event
            if isinstance(event, GenerationOutput):
                yield key, event


@session_fault("test_a_stream_scores_as_the_list_does")
class LosesTheLastScore(ToySession):
    """The last, half-filled batch of a scoring stream is lost."""

    def loglikelihood_continuous(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, requests: Iterable[tuple[Any, LoglikelihoodRequest]], *, batch_size: int | None = None
    ) -> Iterator[Any]:
        source = iter(requests)
        while len(full := list(islice(source, batch_size or 2))) == (batch_size or 2):
            yield from super().loglikelihood_continuous(full, batch_size=batch_size)


@session_fault("test_a_stream_scores_as_the_list_does")
class KeepsScoresOfAClosedStream(ToySession):
    """What a scoring stream had computed when it was closed is given to the next one."""

    _left: tuple[Any, ...] = ()

    def loglikelihood_continuous(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, requests: Iterable[tuple[Any, LoglikelihoodRequest]], *, batch_size: int | None = None
    ) -> Iterator[Any]:
        found = dict(super().loglikelihood_continuous(requests, batch_size=batch_size))
        self._left += tuple(found.values())
        for key in found:
            score, self._left = self._left[0], self._left[1:]
            yield key, score


@session_fault("test_a_bad_pair_is_a_value")
class EndsAtABadPair(ToySession):
    """One bad pair ends the stream for all."""

    def loglikelihood_continuous(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, requests: Iterable[tuple[Any, LoglikelihoodRequest]], *, batch_size: int | None = None
    ) -> Iterator[Any]:
        for key, result in super().loglikelihood_continuous(requests, batch_size=batch_size):
            if isinstance(result, RequestFailure):
                raise result.error
            yield key, result


def _forget_in_streams(name: str, **fields: Any) -> None:
    """Add a session whose continuous call alone takes these fields of requests for these values."""

    def generate_continuous(
        self: ToySession, requests: Requests, *, batch_size: int | None = None
    ) -> Results:
        changed = ((key, replace(request, **fields)) for key, request in requests)
        return ToySession.generate_continuous(self, changed, batch_size=batch_size)

    fault = f"A stream takes every request for one with {fields}."
    body = {"__doc__": fault, "generate_continuous": generate_continuous}
    session_fault("test_a_stream_completes_as_generate_does")(type(name, (ToySession,), body))


_forget_in_streams("StreamsWithoutStops", stop=[])
_forget_in_streams("StreamsWithoutTopK", top_k=0)
_forget_in_streams("StreamsWithoutTopP", top_p=1.0)
_forget_in_streams("StreamsWithoutMessages", messages=None)
_forget_in_streams("StreamsWithoutIds", input_ids=None)
_forget_in_streams("StreamsWithoutRenderedPrompts", rendered_prompt=None)
_forget_in_streams("StreamsWithoutLogprobs", logprobs=None)
_forget_in_streams("StreamsWithoutSeeds", seed=None)
_forget_in_streams("StreamsPastNoEos", ignore_eos=False)


@session_fault("test_a_stream_completes_as_generate_does")
class StreamsCountNoCut(ToySession):
    """A stream reports no cut of a prompt."""

    def generate_continuous(self, requests: Requests, *, batch_size: int | None = None) -> Results:
        for key, result in super().generate_continuous(requests, batch_size=batch_size):
            if isinstance(result, GenerationOutput):
                result = replace(result, truncated_tokens=0)
            yield key, result


def _change_deltas(name: str, fault: str, change: Callable[[Any], Any]) -> None:
    """Add a session whose events other than deltas are changed in `stream` alone."""

    def stream(self: ToySession, requests: Requests, **options: Any) -> Iterator[Any]:
        for key, event in ToySession.stream(self, requests, **options):
            yield key, event if isinstance(event, TextDelta) else change(event)

    checks = "test_deltas_join_to_the_output", "test_a_bad_request_is_a_value"
    caught_by = checks[1:] if name.startswith("Raises") else checks[:1]
    session_fault(*caught_by)(type(name, (ToySession,), {"__doc__": fault, "stream": stream}))


_change_deltas(
    "StreamsTextWithoutLogprobs",
    "The output that ends a streamed text has no log-probabilities.",
    lambda event: replace(event, token_logprobs=None, top_logprobs=None),
)
_change_deltas(
    "StreamsTextWithoutItsEnd",
    "The output that ends a streamed text doesn't say what ended it.",
    lambda event: replace(event, finish_reason=None),
)
_change_deltas(
    "RaisesBadRequestsAmongDeltas", "One bad request ends the deltas of all.", require_output
)


@session_fault("test_deltas_join_to_the_output")
class StreamsTextUnsampled(ToySession):
    """`stream` is greedy, whatever is asked for."""

    def stream(self, requests: Requests, **options: Any) -> Iterator[Any]:
        greedy = ((key, replace(request, do_sample=False)) for key, request in requests)
        return super().stream(greedy, **options)


class _ChangesStreamedPairs(ToySession):
    """Changes pairs and their scores in streams alone."""

    def ask(self, pair: LoglikelihoodRequest) -> LoglikelihoodRequest:
        return pair

    def change(self, output: LoglikelihoodOutput) -> LoglikelihoodOutput:
        return output

    def loglikelihood_continuous(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, requests: Iterable[tuple[Any, LoglikelihoodRequest]], *, batch_size: int | None = None
    ) -> Iterator[Any]:
        asked = ((key, self.ask(pair)) for key, pair in requests)
        for key, result in super().loglikelihood_continuous(asked, batch_size=batch_size):
            yield key, result if isinstance(result, RequestFailure) else self.change(result)


@session_fault("test_a_stream_scores_as_the_list_does")
class StreamsPairsWithoutMessages(_ChangesStreamedPairs):
    """A scoring stream ignores messages."""

    def ask(self, pair: LoglikelihoodRequest) -> LoglikelihoodRequest:
        return replace(pair, messages=None)


@session_fault("test_a_stream_scores_as_the_list_does")
class StreamsPairsWithoutTop(_ChangesStreamedPairs):
    """A scoring stream ignores `top_logprobs`."""

    def ask(self, pair: LoglikelihoodRequest) -> LoglikelihoodRequest:
        return replace(pair, top_logprobs=None)


@session_fault("test_a_stream_scores_as_the_list_does")
class StreamsPairsAsGreedy(_ChangesStreamedPairs):
    """In a scoring stream `is_greedy` is always true."""

    def change(self, output: LoglikelihoodOutput) -> LoglikelihoodOutput:
        return replace(output, is_greedy=True)


@session_fault("test_a_stream_scores_as_the_list_does")
class StreamsPairsWithoutCounts(_ChangesStreamedPairs):
    """A scoring stream reports no cut of a context."""

    def change(self, output: LoglikelihoodOutput) -> LoglikelihoodOutput:
        return replace(output, truncated_tokens=0)


class _ChangesStreamedTexts(ToySession):
    """Changes what comes of a stream of texts."""

    def change(self, result: Any) -> Any:
        return result

    def loglikelihood_rolling_continuous(
        self, requests: Iterable[tuple[Any, Any]], **options: Any
    ) -> Iterator[tuple[Any, Any]]:
        for key, result in super().loglikelihood_rolling_continuous(requests, **options):
            yield key, self.change(result)


@session_fault("test_a_stream_of_texts_scores_as_the_list_does")
class EndsAtABadText(_ChangesStreamedTexts):
    """One bad text ends the stream for all."""

    def change(self, result: Any) -> Any:
        return require_output(result)


@session_fault("test_a_stream_of_texts_scores_as_the_list_does")
class StreamsTextsWithoutMetadata(_ChangesStreamedTexts):
    """A stream of texts loses the caller's metadata."""

    def change(self, result: Any) -> Any:
        return replace(result, metadata={})
