"""The conformance kit through client, HTTP, server and reference engine, on each way of asking."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="the extra `server` isn't installed: no starlette")
pytest.importorskip("uvicorn", reason="the extra `server` isn't installed: no uvicorn")

from evalution_conformance import EngineConformance
from evalution_core import Model
from evalution_core.builtins import builtin_path
from evalution_openai.engine import OpenAICompatible
from evalution_openai.server import build_openai_compatible_server
from evalution_reference.engine import Reference


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


PORT = _free_port()
URL = f"http://127.0.0.1:{PORT}"
TOKENIZER = str(builtin_path("builtin:tiny", "safetensors"))


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """The reference engine in float64 behind Evalution's own server."""
    engine = Reference(dtype="float64")
    with build_openai_compatible_server(engine=engine, model="builtin:tiny", port=PORT):
        yield


class TestServerTokenizes(EngineConformance):
    """Text goes as it is; scoring by Evalution's own routes."""

    engine = OpenAICompatible(base_url=URL)
    model = Model(path="builtin:tiny")


class TestLocalTokenizer(EngineConformance):
    """Prompts are rendered and encoded here; token ids go."""

    engine = OpenAICompatible(base_url=URL, batch_size="auto")
    model = Model(path="builtin:tiny", tokenizer_path=TOKENIZER)


class TestEchoScoring(EngineConformance):
    """As with a foreign server: encoded by `/tokenize`, scored by `echo`, every answer streamed."""

    engine = OpenAICompatible(base_url=URL, scoring="echo", timings=True)
    model = Model(path="builtin:tiny")
