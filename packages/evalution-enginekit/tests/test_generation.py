"""Generation through a toy engine: slots, order, stops, and what one request's fate does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution_core import (
    Capability,
    EngineRuntimeError,
    GenerationOutput,
    GenerationRequest,
    InvalidRequestError,
    RequestFailure,
    TextDelta,
    UnsupportedRequestError,
)
from evalution_enginekit import ByteTokenizer, PromptQueue, TokenEvent

WAIT_S = 20
Echoes = Callable[..., Any]


def ask(prompt: str, **options: Any) -> GenerationRequest:
    return GenerationRequest(prompt, max_new_tokens=options.pop("max_new_tokens", 40), **options)


def keyed(*prompts: str) -> list[tuple[str, GenerationRequest]]:
    return [(prompt, ask(prompt)) for prompt in prompts]


@pytest.mark.parametrize("without", [(), (Capability.CONTINUOUS_BATCHING,)])
def test_outputs_come_in_order_whatever_runs_together(echo: Echoes, without: Any) -> None:
    session = echo(without=without)

    @settings(deadline=None, max_examples=20)
    @given(st.lists(st.text("abé", min_size=1, max_size=6), max_size=6), st.integers(1, 4))
    def check(prompts: list[str], batch_size: int) -> None:
        outputs = session.generate([ask(prompt) for prompt in prompts], batch_size=batch_size)
        assert [output.text for output in outputs] == prompts
        assert {output.finish_reason for output in outputs} <= {"stop"}
        assert session.requests_in_flight == 0

    check()


def test_a_free_slot_takes_the_next_request_at_once(echo: Echoes) -> None:
    session = echo(batch_size=2)
    waiting = threading.Event()
    session.before_step = lambda: waiting.wait(WAIT_S)

    def requests() -> Iterator[tuple[str, GenerationRequest]]:
        yield from keyed("a long prompt", "b", "c")
        waiting.set()
        yield from keyed("d")

    order = [key for key, _ in session.generate_continuous(requests())]
    assert sorted(order) == ["a long prompt", "b", "c", "d"]
    assert order.index("b") < order.index("c") < order.index("a long prompt")
    assert [0, 2] in session.steps, "the third request ran beside the first"
    assert max(map(len, session.steps)) == 2


def test_without_refill_a_batch_is_finished_before_the_next(echo: Echoes) -> None:
    session = echo(batch_size=2, without=[Capability.CONTINUOUS_BATCHING])
    outputs = session.generate([ask(text) for text in ("abcd", "e", "f", "gh")])
    assert [output.text for output in outputs] == ["abcd", "e", "f", "gh"]
    # A slow machine may begin with one of them; but none joins what has begun.
    together = {tuple(step) for step in session.steps if len(step) == 2}
    assert together <= {(0, 1), (1, 2), (2, 3)}
    assert len({key for step in together for key in step}) == 2 * len(together)


def test_batch_size_caps_what_runs_at_once(echo: Echoes) -> None:
    session = echo(batch_size=4)
    session.generate([ask(text) for text in "abcdef"], batch_size=1)
    assert max(map(len, session.steps)) == 1


def test_open_calls_are_admitted_in_turn(echo: Echoes, aside: ThreadPoolExecutor) -> None:
    session = echo(batch_size=1)
    both = threading.Barrier(2, timeout=WAIT_S)

    def requests(letter: str) -> Iterator[tuple[str, GenerationRequest]]:
        yield from keyed(letter, letter, letter)
        both.wait()

    reading = [aside.submit(list, session.generate_continuous(requests(text))) for text in "ab"]
    assert [len(future.result(WAIT_S)) for future in reading] == [3, 3]
    assert {prompt.token_ids[-1] for prompt in session.admitted} == {97, 98}


def test_a_stop_string_cancels_the_prompt_and_the_others_go_on(echo: Echoes) -> None:
    session = echo(batch_size=2)
    stopped, other = session.generate([ask("abcdefgh", stop=["cd"]), ask("abcdefgh")])
    assert (stopped.text, stopped.token_ids, stopped.completion_tokens) == ("ab", [97, 98], 4)
    assert (stopped.finish_reason, other.text) == ("stop", "abcdefgh")
    assert len(session.dropped) == 1


def test_the_limit_ends_a_completion(echo: Echoes) -> None:
    (output,) = echo().generate([ask("abc", max_new_tokens=2, metadata={"row": 3})])
    assert (output.text, output.finish_reason, output.completion_tokens) == ("ab", "length", 2)
    assert output.metadata == {"row": 3}
    assert (output.prompt, output.prompt_tokens, output.truncated_tokens) == ("abc", 4, 0)


def test_ignore_eos_goes_on_past_the_end_token(echo: Echoes) -> None:
    (output,) = echo().generate([ask("ab", max_new_tokens=5, ignore_eos=True)])
    assert output.text == "abab"
    assert output.token_ids == [97, 98, 257, 97, 98]


def test_stream_yields_text_as_it_becomes_certain(echo: Echoes) -> None:
    told: dict[str, list[Any]] = {}
    requests = [("a", ask("abé")), ("b", ask("xyz", stop=["z"]))]
    for key, event in echo().stream(requests):
        told.setdefault(key, []).append(event)
    for key, text in (("a", "abé"), ("b", "xy")):
        *deltas, output = told[key]
        assert all(isinstance(delta, TextDelta) for delta in deltas)
        assert "".join(delta.text for delta in deltas) == output.text == text
        assert [i for delta in deltas for i in delta.token_ids] == output.token_ids
        assert deltas


def test_a_session_that_can_not_stream_says_so(echo: Echoes) -> None:
    with pytest.raises(UnsupportedRequestError, match="engine Echo can't stream"):
        echo(without=[Capability.STREAM]).stream([])


def test_bad_requests_are_refused_before_any_runs(echo: Echoes) -> None:
    session = echo()
    with pytest.raises(
        InvalidRequestError, match=r"^2 of 3 requests refused, none was run: \[0\] .*; \[2\] "
    ) as raised:
        session.generate([GenerationRequest(), ask("a"), ask("a", stop=[""])])
    assert sorted(raised.value.failures) == [0, 2]
    assert session.admitted == []


def test_a_bad_request_of_a_stream_is_a_value(echo: Echoes) -> None:
    bad = GenerationRequest(metadata={"row": 1})
    results = dict(echo().generate_continuous([("a", ask("a")), ("b", bad), ("c", ask("c"))]))
    failure = results.pop("b")
    assert isinstance(failure, RequestFailure)
    assert isinstance(failure.error, InvalidRequestError)
    assert failure.metadata == {"row": 1}
    assert {key: output.text for key, output in results.items()} == {"a": "a", "c": "c"}


def test_a_poisoned_request_fails_alone(echo: Echoes) -> None:
    session = echo()
    session.poison = lambda prompt: (
        EngineRuntimeError("bad row") if 33 in prompt.token_ids else None
    )
    results = dict(session.generate_continuous(keyed("a", "!", "c", "d")))
    failure = results.pop("!")
    assert isinstance(failure, RequestFailure)
    assert str(failure.error) == "bad row"
    assert all(isinstance(output, GenerationOutput) for output in results.values())
    with pytest.raises(EngineRuntimeError, match=r"^bad row$"):
        session.generate([ask("a"), ask("!")])
    assert session.requests_in_flight == 0


def test_crash_fails_only_requests_in_flight(echo: Echoes) -> None:
    session = echo(batch_size=2)
    crash = RuntimeError("CUDA error: device-side assert")

    def crash_late() -> None:
        if len(session.steps) == 4:
            raise crash

    session.before_step = crash_late
    results: list[str] = []
    stream = session.generate_continuous(keyed("a", "bbbbbbbb"))
    with pytest.raises(EngineRuntimeError, match="device-side assert") as raised:
        results.extend(key for key, _ in stream)
    assert results == ["a"]
    assert raised.value.in_flight == ("bbbbbbbb",)
    assert raised.value.__cause__ is crash
    assert "(1 in flight)" in str(raised.value)
    session.before_step = lambda: None
    assert session.generate([ask("again")])[0].text == "again"


def test_crash_leaves_a_waiting_stream_alone(echo: Echoes, aside: ThreadPoolExecutor) -> None:
    session = echo(batch_size=1)
    stepping, waiting = threading.Event(), threading.Event()

    def crash_once() -> None:
        stepping.set()
        assert waiting.wait(WAIT_S)
        session.before_step = lambda: None
        raise OSError("worker died")

    def requests() -> Iterator[tuple[str, GenerationRequest]]:
        yield from keyed("b")
        waiting.set()

    session.before_step = crash_once
    running = aside.submit(session.generate, [ask("a")])
    assert stepping.wait(WAIT_S)
    assert [key for key, _ in session.generate_continuous(requests())] == ["b"]
    with pytest.raises(EngineRuntimeError, match="worker died") as raised:
        running.result(WAIT_S)
    assert raised.value.in_flight == (0,)


def test_failure_before_any_prompt_is_taken_ends_waiting_streams(
    echo_class: Any, aside: ThreadPoolExecutor
) -> None:
    class NeverStarts(echo_class):
        def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
            raise OSError("no device")

    session = NeverStarts()
    with pytest.raises(EngineRuntimeError, match="no device") as raised:
        aside.submit(session.generate, [ask("a")]).result(WAIT_S)
    assert raised.value.in_flight == ()
    session.close()


class _Unspellable(ByteTokenizer):
    """Has no piece for `!`, as SentencePiece has none for ids that pad a vocabulary."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if token_ids[-1:] == [ord("!")] and ord("c") in token_ids:
            raise IndexError("piece id is out of range")
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)


def test_a_token_that_cannot_be_decoded_costs_its_request_alone(echo: Echoes) -> None:
    session = echo(tokenizer=_Unspellable(), batch_size=3)
    prompts = ["a longer one", "c! and more", "b!", "d"]
    found: dict[str, Any] = dict(session.generate_continuous(keyed(*prompts)))
    bad = found.pop("c! and more")
    assert isinstance(bad, RequestFailure)
    assert "reading the generated tokens failed: IndexError: piece id is" in str(bad.error)
    assert {key: output.text for key, output in found.items()} == {
        prompt: prompt for prompt in found
    }
    assert session.dropped == [1], "the engine lets go of it"
    assert session.requests_in_flight == 0


def test_list_call_names_lost_requests_by_index(echo: Echoes) -> None:
    session = echo(batch_size=2, max_model_len=10**6)

    def crash() -> None:
        if len(session.admitted) == 2:
            raise OSError("worker died")

    session.before_step = crash
    with pytest.raises(EngineRuntimeError, match="generation failed: OSError: worker died") as e:
        session.generate([ask("a", max_new_tokens=10**5, ignore_eos=True)] * 2)
    assert e.value.in_flight == (0, 1)


class _NeverAsks:
    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        return iter(())


class _GivesUp:
    def _generate_tokens(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        yield [TokenEvent(prompt.key, [97]) for prompt in feed.take(8)]


def test_an_engine_that_never_asks_for_prompts_is_an_error(
    echo_class: Any, aside: ThreadPoolExecutor
) -> None:
    session = type("NeverAsks", (_NeverAsks, echo_class), {})()
    call = aside.submit(session.generate, [ask("a")])
    with pytest.raises(EngineRuntimeError, match="asked for none of the waiting prompts"):
        call.result(WAIT_S)
    session.close()


def test_a_request_that_the_engine_gives_up_is_an_error(
    echo_class: Any, aside: ThreadPoolExecutor
) -> None:
    session = type("GivesUp", (_GivesUp, echo_class), {})()
    call = aside.submit(lambda: list(session.generate_continuous(keyed("a"))))
    ((key, failure),) = call.result(WAIT_S)
    assert key == "a"
    assert "ended generation before max_new_tokens or one of stop_ids" in str(failure.error)
    assert failure.error.in_flight == ("a",)
    assert session.requests_in_flight == 0
    session.close()
