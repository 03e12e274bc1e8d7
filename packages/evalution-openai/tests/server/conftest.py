from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from evalution_core import BaseInferenceSession, Model, load_engine
from evalution_enginekit.mock import Mock


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


Serving = Callable[..., httpx.Client]


@pytest.fixture(scope="module")
def serving() -> Generator[Serving]:
    """Start a server of what it is called with, on a free port; gives a client of it."""
    from evalution_openai.server import build_openai_compatible_server
    from evalution_openai.server.listening import listening

    with ExitStack() as stack:

        def start(**options: Any) -> httpx.Client:
            app = build_openai_compatible_server(**options)
            url = stack.enter_context(listening(app))
            return stack.enter_context(httpx.Client(base_url=url, timeout=30))

        yield start


@pytest.fixture(scope="module")
def client(serving: Serving, tiny: BaseInferenceSession) -> httpx.Client:
    """A client of the tiny model."""
    return serving(session=tiny, model_name="tiny")
