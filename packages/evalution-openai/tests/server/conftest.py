from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from evalution_core import BaseInferenceSession, Capability, Model, load_engine
from evalution_enginekit.mock import MOCK_CAPABILITIES, Mock, MockSession


@pytest.fixture(scope="session", autouse=True)
def _server_extra() -> None:
    for package in ("httptools", "prometheus_client", "starlette", "uvicorn"):
        pytest.importorskip(package, reason=f"the extra `server` isn't installed: no {package}")


@pytest.fixture(scope="session")
def tiny() -> Iterator[BaseInferenceSession]:
    """The tiny model on the reference engine."""
    with load_engine("Reference")(dtype="float64").build(Model("builtin:tiny")) as session:
        yield session


@pytest.fixture
def mock() -> Iterator[BaseInferenceSession]:
    with Mock().build(Model("mock")) as session:
        yield session


@pytest.fixture
def mock_without_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[BaseInferenceSession]:
    """A mock session that lists no likeliest tokens of a prompt."""
    rows = {Capability.DISTRIBUTIONS, Capability.PROMPT_TOP_LOGPROBS}
    monkeypatch.setattr("evalution_enginekit.mock.MOCK_CAPABILITIES", MOCK_CAPABILITIES - rows)
    with Mock().build(Model("mock")) as session:
        yield session


@pytest.fixture
def full_speed() -> threading.Event:
    """Once it is set, the session `slow` no longer waits at each step."""
    return threading.Event()


@pytest.fixture
def slow(
    monkeypatch: pytest.MonkeyPatch, full_speed: threading.Event
) -> Iterator[BaseInferenceSession]:
    """A mock session of which each step takes a moment."""
    stepping = MockSession._step  # pyright: ignore[reportPrivateUsage]

    def step(self: Any, sequences: Any) -> Any:
        full_speed.wait(0.003)
        return stepping(self, sequences)

    monkeypatch.setattr(MockSession, "_step", step)
    with Mock(max_model_len=8192, batch_size=4).build(Model("mock")) as session:
        yield session


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], object]], None]:
    """Wait for what it is called with to be true; the test fails if it is not within 20 s."""

    def wait(condition: Callable[[], object]) -> None:
        end = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end, "it never became true"
            time.sleep(0.002)

    return wait


Serving = Callable[..., httpx.Client]


@pytest.fixture(scope="module")
def serving() -> Generator[Serving]:
    """Start a server of what it is called with, on a free port; gives a client of it."""
    from evalution_openai.server import build_openai_compatible_server

    with ExitStack() as stack:

        def start(**options: Any) -> httpx.Client:
            server = stack.enter_context(build_openai_compatible_server(**options))
            # By http, which needs no certificates: to read them takes 30 ms.
            options = {"base_url": server.base_url, "timeout": 30, "verify": False}
            return stack.enter_context(httpx.Client(**options))

        yield start


@pytest.fixture(scope="module")
def client(serving: Serving, tiny: BaseInferenceSession) -> httpx.Client:
    """A client of the tiny model."""
    return serving(session=tiny, model_name="tiny")
