"""Every exchange of client and server breaks at every byte, both ways, and no answer is wrong.

A connection that is closed or reset is tried again; what is damaged is tried again or fails by
itself; what stalls holds up no other, and goes on. A stream of text ends with an error once a part
of it was handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from evalution_core import (
    Capability,
    EvalutionError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    RequestFailure,
    RollingLoglikelihoodRequest,
    TextDelta,
)
from evalution_enginekit.mock import Mock
from proxy import ANSWER, REQUEST, Direction, Fault, Kind, Proxy

pytest.importorskip("uvicorn", reason="the extra `server` isn't installed: no uvicorn")

from evalution_openai.client.retry import Clock
from evalution_openai.client.session import OpenAISession, build_session
from evalution_openai.options import OpenAIOptions
from evalution_openai.server import build_openai_compatible_server

pytestmark = pytest.mark.faults
WAIT_S = 20.0
STRIDE = 151
"""Bytes between two faults while a session is built, which is a dozen exchanges."""
STALL_STRIDE = 3
"""Bytes between two stalls; each waits for two threads."""
Call = Callable[[OpenAISession], Any]


class _HastyClock(Clock):
    """Doesn't wait before another try."""

    async def sleep(self, seconds: float) -> None:
        pass


def _stream(session: OpenAISession) -> Any:
    request = GenerationRequest("Once", max_new_tokens=3)
    text = ""
    for _, event in session.stream([(0, request)]):
        if isinstance(event, RequestFailure):
            raise event.error
        if isinstance(event, TextDelta):
            text += event.text
        else:
            assert text == event.text
    return text


CALLS: dict[str, Call] = {
    "generate": lambda session: session.generate([GenerationRequest("Once", max_new_tokens=2)]),
    "stream": _stream,
    "pairs": lambda session: session.loglikelihood([LoglikelihoodRequest("a", " b")]),
    "texts": lambda session: session.loglikelihood_rolling([RollingLoglikelihoodRequest("ab")]),
}


def _read(answer: Any) -> Any:
    """An answer less what the server numbers or times."""
    if isinstance(answer, str):
        return answer
    (output,) = answer
    return [
        getattr(output, name, None)
        for name in ("text", "token_ids", "logprob", "token_logprobs", "token_count")
    ]


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with (
        Mock().build(Model("mock")) as engine,
        build_openai_compatible_server(session=engine, model_name="mock") as server,
        Proxy(server.port).run() as proxy,
    ):
        yield proxy
        assert engine.requests_in_flight == 0


@pytest.fixture(scope="module")
def session(proxy: Proxy) -> Iterator[OpenAISession]:
    with _build(proxy) as session:
        yield session


@pytest.fixture(scope="module")
def neighbour(proxy: Proxy) -> Iterator[OpenAISession]:
    with _build(proxy) as session:
        yield session


def _build(proxy: Proxy, *, timeout_s: float = 2.0) -> OpenAISession:
    options = OpenAIOptions(f"http://127.0.0.1:{proxy.port}", timeout_s=timeout_s, batch_size=1)
    return build_session(options, Model(), clock=_HastyClock())


def _count(proxy: Proxy, run: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """The right answer, and how many bytes it takes each way."""
    run()
    proxy.arm(None)
    answer = run()
    return answer, dict(proxy.passed)


@pytest.mark.parametrize("direction", [REQUEST, ANSWER])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["close", "reset", "garbage"])
def test_broken_exchange_is_tried_again_or_fails_by_itself(
    proxy: Proxy, session: OpenAISession, kind: Kind, call: str, direction: Direction
) -> None:
    right, lengths = _count(proxy, lambda: _read(CALLS[call](session)))
    failed: list[str] = []
    for at in range(lengths[direction]):
        proxy.arm(Fault(kind, direction, at))
        try:
            found = _read(CALLS[call](session))
        except EvalutionError as error:
            failed.append(str(error))
        else:
            assert found == right, f"{kind} at byte {at} of the {direction}"
        assert proxy.has_fired, f"byte {at} of {lengths[direction]} was never sent"
    if kind != "garbage" and (call, direction) != ("stream", ANSWER):
        assert not failed
    assert all(len(sentence) > 20 for sentence in failed)
    assert _read(CALLS[call](session)) == right


@pytest.mark.parametrize("direction", [REQUEST, ANSWER])
@pytest.mark.parametrize("call", CALLS)
def test_stalled_exchange_holds_up_no_other_and_goes_on(
    proxy: Proxy, neighbour: OpenAISession, call: str, direction: Direction
) -> None:
    with _build(proxy, timeout_s=WAIT_S) as session, ThreadPoolExecutor(1) as aside:
        right, lengths = _count(proxy, lambda: _read(CALLS[call](session)))
        other = _read(CALLS["pairs"](neighbour))
        for at in range(0, lengths[direction], STALL_STRIDE):
            proxy.arm(Fault("stall", direction, at))
            stalled = aside.submit(CALLS[call], session)
            assert proxy.stalled.wait(WAIT_S)
            assert _read(CALLS["pairs"](neighbour)) == other
            proxy.release()
            assert _read(stalled.result(WAIT_S)) == right


@pytest.mark.parametrize("direction", [REQUEST, ANSWER])
@pytest.mark.parametrize("kind", ["close", "reset", "garbage"])
def test_session_is_built_right_or_not_at_all(
    proxy: Proxy, session: OpenAISession, kind: Kind, direction: Direction
) -> None:
    """A probe whose request arrives damaged is refused, and may cost a capability."""
    right, pair = session.info.capabilities, _read(CALLS["pairs"](session))
    proxy.arm(None)
    with _build(proxy):
        length = proxy.passed[direction]
    refused: list[str] = []
    for at in range(0, length, STRIDE):
        proxy.arm(Fault(kind, direction, at))
        try:
            built = _build(proxy)
        except EvalutionError as error:
            refused.append(str(error))
            continue
        with built:
            found = built.info.capabilities
            # A session that can't send text sends ids, and then renders chats and their tools.
            assert found == right or (kind == "garbage" and found - {Capability.TOOLS} <= right)
            if Capability.LOGLIKELIHOOD in found:
                assert _read(CALLS["pairs"](built)) == pair
    assert all(len(sentence) > 20 for sentence in refused)
