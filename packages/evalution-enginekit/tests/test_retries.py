"""Whether an event loop of requests tells poisoned ones from a dead runtime."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest

from evalution_core import (
    Capability,
    EngineRuntimeError,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
)
from evalution_enginekit import (
    ByteTokenizer,
    CompletionChunk,
    RequestPrompt,
    RequestSession,
    TokenScore,
    TokenSpan,
)
from evalution_enginekit.request_loop import Emit, RequestJob, RequestLoop
from evalution_enginekit.streams import StreamLimits

WAIT_S = 20
DEPTH = 2
EAGER = StreamLimits(running=50, ahead=50)


async def _nothing() -> None:
    return None


@pytest.fixture
def loop() -> Iterator[RequestLoop]:
    loop = RequestLoop("the test session", DEPTH)
    yield loop
    loop.close(_nothing)


class Runtime:
    """Serves jobs by name: bad ones fail always, and all of them once it is dead."""

    def __init__(self) -> None:
        self.served: list[str] = []
        self.dead = False
        self.on_serve: Callable[[str], Any] = lambda _: None

    def job(self, name: str) -> RequestJob:
        async def serve(_: Emit) -> str:
            self.served.append(name)
            if (awaited := self.on_serve(name)) is not None:
                await awaited
            if self.dead or name.startswith("bad"):
                raise OSError("500")
            return name.upper()

        return RequestJob(serve, {})


def submitted(loop: RequestLoop, jobs: dict[str, RequestJob]) -> Any:
    stream = loop.open(EAGER)
    for key, job in jobs.items():
        stream.submit(key, job)
    stream.finish_input()
    return stream


def failures(results: Mapping[Any, Any]) -> set[Any]:
    return {key for key, result in results.items() if isinstance(result, RequestFailure)}


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_poisoned_requests_in_a_row_fail_alone(loop: RequestLoop, depth: int) -> None:
    loop.set_depth(depth)
    runtime = Runtime()
    names = ["first", *(f"bad {n}" for n in range(30)), "last"]
    stream = submitted(loop, {name: runtime.job(name) for name in names})
    results = dict(stream.results())
    assert results.keys() == set(names)
    assert failures(results) == {name for name in names if name.startswith("bad")}
    assert 1 < runtime.served.count("first") <= 1 + 30 // 3, "the canary, once in a while"


def test_dead_runtime_ends_the_stream_once_the_canary_fails(loop: RequestLoop) -> None:
    runtime = Runtime()
    stream = submitted(loop, {"first": runtime.job("first")})
    assert dict(stream.results()) == {"first": "FIRST"}
    runtime.dead = True
    names = [f"{n}" for n in range(30)]
    stream, read = submitted(loop, {name: runtime.job(name) for name in names}), []
    with pytest.raises(EngineRuntimeError, match=r"OSError: 500 \(\d in flight\)") as caught:
        read.extend(stream.results())
    assert len(read) == DEPTH
    assert not set(dict(read)) & set(caught.value.in_flight)
    assert runtime.served.count("first") == 2
    assert len(runtime.served) <= 2 + 2 * DEPTH


def test_given_canary_is_used_until_a_request_has_succeeded(
    loop: RequestLoop,
) -> None:
    runtime = Runtime()
    loop.set_canary(runtime.job("given"))
    names = [*(f"bad {n}" for n in range(4)), "good", *(f"bad again {n}" for n in range(4))]
    results = dict(submitted(loop, {name: runtime.job(name) for name in names}).results())
    assert failures(results) == set(names) - {"good"}
    at = runtime.served.index("good")
    assert "given" in runtime.served[:at]
    assert "given" not in runtime.served[at + 2 :]
    assert "good" in runtime.served[at + 1 :]


class Trial:
    """Holds the canary while it is served, until it is told to go on."""

    def __init__(self, runtime: Runtime):
        self.begun = threading.Event()
        self._loop: Any = None
        self._gate = asyncio.Event()
        runtime.on_serve = self._held

    def _held(self, name: str) -> Any:
        if name != "canary":
            return None
        self._loop = asyncio.get_running_loop()
        self.begun.set()
        return self._gate.wait()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._gate.set)


def test_request_cancelled_during_the_canary_proves_nothing(loop: RequestLoop) -> None:
    runtime = Runtime()
    trial = Trial(runtime)
    loop.set_depth(1)
    loop.set_canary(runtime.job("canary"))
    stream = submitted(loop, {name: runtime.job(name) for name in ("bad 0", "bad 1", "bad 2", "c")})
    assert trial.begun.wait(WAIT_S)
    stream.cancel("bad 2")
    results = dict(stream.results())
    assert results.pop("c") == "C"
    assert failures(results) == {"bad 0", "bad 1"}


def test_closing_a_stream_ends_its_canary(loop: RequestLoop) -> None:
    runtime = Runtime()
    trial = Trial(runtime)
    loop.set_canary(runtime.job("canary"))
    stream = submitted(loop, {f"bad {n}": runtime.job(f"bad {n}") for n in range(9)})
    assert trial.begun.wait(WAIT_S)
    stream.close()
    assert loop.running == 0
    other = submitted(loop, {"other": runtime.job("other")})
    assert dict(other.results()) == {"other": "OTHER"}


def test_success_beside_the_canary_proves_life(loop: RequestLoop) -> None:
    runtime = Runtime()
    trial = Trial(runtime)
    loop.set_canary(runtime.job("canary"))
    jobs = {name: runtime.job(name) for name in ("bad 0", "bad 1", "bad 2", "good", "bad 3")}
    stream = submitted(loop, jobs)
    results = stream.results()
    assert trial.begun.wait(WAIT_S)
    found = dict(next(results) for _ in range(3))
    assert found["good"] == "GOOD"
    runtime.dead = True
    trial.end()
    found |= dict(results)
    assert failures(found) == jobs.keys() - {"good"}


class Hosted(RequestSession):
    """Answers whatever has no `!` in it, as long as it lives."""

    dead = False

    async def _complete(self, prompt: RequestPrompt) -> AsyncIterator[CompletionChunk]:
        self._ask(repr(prompt.request.messages or prompt.text))
        yield CompletionChunk("x", finish="length")

    async def _score(self, span: TokenSpan) -> TokenScore:
        self._ask(bytes(i for i in span.token_ids if i < 256).decode())
        return TokenScore([-0.01 * token_id for token_id in span.token_ids[span.start :]])

    async def _score_pair(self, request: LoglikelihoodRequest) -> LoglikelihoodOutput:
        self._ask(request.context)
        return LoglikelihoodOutput(-1.0, True, 1)

    def _ask(self, text: str) -> None:
        if self.dead or "!" in text:
            raise OSError("HTTP 500")


def hosted(*capabilities: Capability, encodes: bool) -> Hosted:
    return Hosted(
        engine="Hosted",
        capabilities=frozenset(capabilities) | {Capability.CONTINUOUS_BATCHING},
        loop=RequestLoop("the Hosted session", DEPTH),
        tokenizer=ByteTokenizer() if encodes else None,
        max_model_len=512 if encodes else None,
        encodes=encodes,
    )


PROMPTS = [(f"{n}!", GenerationRequest(f"{n}!", max_new_tokens=1)) for n in range(9)]
CHATS = [
    (f"{n}!", GenerationRequest(messages=[{"role": "user", "content": f"{n}!"}])) for n in range(9)
]


@pytest.mark.parametrize(
    ("capabilities", "encodes", "requests"),
    [
        ([Capability.GENERATE], True, PROMPTS),
        ([Capability.GENERATE], False, PROMPTS),
        ([Capability.GENERATE, Capability.CHAT], False, CHATS),
    ],
)
def test_session_has_a_canary_before_anything_succeeded(
    capabilities: list[Capability], encodes: bool, requests: list[Any]
) -> None:
    with hosted(*capabilities, encodes=encodes) as session:
        results = dict(session.generate_continuous(requests))
        assert failures(results) == {key for key, _ in requests}
        session.dead = True
        with pytest.raises(EngineRuntimeError, match="HTTP 500") as caught:
            list(session.generate_continuous(requests))
        assert caught.value.in_flight


def test_session_that_only_scores_text_has_a_canary() -> None:
    pairs = [(f"{n}!", LoglikelihoodRequest(f"{n}!", "a")) for n in range(9)]
    with hosted(Capability.LOGLIKELIHOOD, encodes=False) as session:
        assert failures(dict(session.loglikelihood_continuous(pairs))) == dict(pairs).keys()
        session.dead = True
        with pytest.raises(EngineRuntimeError, match="HTTP 500"):
            list(session.loglikelihood_continuous(pairs))


def test_poisoned_questions_of_ten_choices_fail_alone() -> None:
    with hosted(Capability.GENERATE, Capability.LOGLIKELIHOOD, encodes=True) as session:
        pairs = [
            ((row, choice), LoglikelihoodRequest(f"{row}{'!' * (row in (3, 4))}", choice))
            for row in range(7)
            for choice in "abcdefghij"
        ]
        results = dict(session.loglikelihood_continuous(pairs))
        assert failures(results) == {key for key, _ in pairs if key[0] in (3, 4)}
        (output,) = session.generate([GenerationRequest("a", max_new_tokens=1)])
        assert isinstance(output, GenerationOutput)
