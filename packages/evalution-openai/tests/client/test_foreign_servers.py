"""The client against servers of others, unmodified: GuideLLM's mock and llama-cpp-python's own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from evalution_core import (
    Capability,
    EngineRuntimeError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    RequestFailure,
    UnsupportedRequestError,
)
from evalution_core.builtins import builtin_path
from evalution_openai.engine import OpenAICompatible

pytestmark = pytest.mark.wide

START_S = 90.0


STARTS = 2
"""A foreign server may lose its port to another process, or start slowly on a busy machine."""


@contextmanager
def listening(command: list[str]) -> Iterator[str]:
    """Start the server of `command` on a free port, with a second try; yield its URL."""
    for tried in range(1, STARTS + 1):
        process, url = _start(command)
        try:
            if _answers(url, process):
                yield url
                return
        finally:
            process.terminate()
            process.wait()
        if tried == STARTS:
            pytest.fail(f"{command} didn't start within {START_S:g} s, {STARTS} times")


def _start(command: list[str]) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", port],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return process, f"http://127.0.0.1:{port}"


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait for the server; return whether it answered before its time was over."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            httpx.get(f"{url}/v1/models", timeout=5.0)
        except httpx.TransportError:
            time.sleep(0.2)
        else:
            return True
    return False


def guidellm(*knobs: str) -> list[str]:
    command = Path(sys.executable).with_name("guidellm")
    if not command.exists():
        pytest.skip("guidellm isn't installed (tools/envs/clients)")
    return [str(command), "mock-server", "--model", "mock", *knobs]


@pytest.fixture(scope="module")
def llama_cpp() -> Iterator[str]:
    needed = ("llama_cpp", "uvicorn", "fastapi", "sse_starlette", "starlette_context")
    if missing := [name for name in needed if find_spec(name) is None]:
        pytest.skip(f"llama-cpp-python's server isn't installed: no {', '.join(missing)}")
    weights = str(builtin_path("builtin:tiny", "gguf"))
    options = ["--model", weights, "--logits_all", "true", "--n_ctx", "512"]
    with listening([sys.executable, "-m", "llama_cpp.server", *options]) as url:
        yield url


def test_guidellms_mock_answers_completions_chat_and_streams() -> None:
    with listening(guidellm()) as url, OpenAICompatible(url).build(Model()) as session:
        requests = {n: GenerationRequest("word " * (n + 1), max_new_tokens=6) for n in range(20)}
        requests |= {
            20 + n: GenerationRequest(
                messages=[{"role": "user", "content": "Hi"}], max_new_tokens=3
            )
            for n in range(4)
        }
        results = list(session.generate_continuous(requests.items()))
        assert sorted(key for key, _ in results) == sorted(requests)
        assert not [result for _, result in results if isinstance(result, RequestFailure)]
        *deltas, (_, output) = session.stream([(0, GenerationRequest("a", max_new_tokens=6))])
        assert "".join(delta.text for _, delta in deltas) == output.text  # pyright: ignore[reportAttributeAccessIssue]
        assert Capability.LOGLIKELIHOOD not in session.capabilities
        with pytest.raises(UnsupportedRequestError, match="set tokenizer_path"):
            session.loglikelihood([LoglikelihoodRequest("a", "b")])


def test_answers_before_a_server_failure_are_kept() -> None:
    command = guidellm("--fail-after-requests", "12", "--max-concurrent-requests", "2")
    with (
        listening(command) as url,
        OpenAICompatible(url, scoring="none", max_retries=0).build(Model()) as session,
    ):
        stream = session.generate_continuous(
            (n, GenerationRequest("a", max_new_tokens=2)) for n in range(40)
        )
        results: dict[int, object] = {}
        with pytest.raises(EngineRuntimeError, match=r"500.*in flight") as caught:
            results.update(_kept(stream, results))
        good = [r for r in results.values() if not isinstance(r, RequestFailure)]
        assert 8 <= len(good) <= 12, "12 were served, those of the build among them"
        assert caught.value.in_flight


def _kept(stream: Iterator[tuple[int, object]], into: dict[int, object]) -> dict[int, object]:
    for key, result in stream:
        into[key] = result  # noqa: PERF403 - a comprehension would lose all when the stream raises
    return into


def test_llama_cpp_pythons_server_completes_as_the_reference(llama_cpp: str) -> None:
    with OpenAICompatible(llama_cpp).build(Model()) as session:
        prompt = "Question: What is 3 + 4?\nAnswer:"
        whole, cut = session.generate(
            [
                GenerationRequest(prompt, max_new_tokens=8),
                GenerationRequest(prompt, max_new_tokens=8, stop=["+"]),
            ]
        )
        assert (whole.text, whole.finish_reason) == (" 3 + 4 = 7", "length")
        assert (cut.text, cut.finish_reason) == (" 3 ", "stop")
        chat = GenerationRequest(messages=[{"role": "user", "content": "What is 6 + 3?"}])
        chat.max_new_tokens = 7
        (answer,) = session.generate([chat])
        assert answer.text == "6 + 3 = 9"


def test_llama_cpp_pythons_server_applies_no_repetition_penalty(llama_cpp: str) -> None:
    in_process = pytest.importorskip("evalution_llama_cpp")
    sentence = "The cat sees a dog. "
    request = GenerationRequest(f"{sentence * 3}The cat sees", max_new_tokens=24)
    with OpenAICompatible(llama_cpp, scoring="none").build(Model()) as session:
        assert session.describe_execution()["dialect"] == "llama-cpp-python"
        (served,) = session.generate([request])
    with in_process.LlamaCpp(device="cpu", n_threads=1).build(Model("builtin:tiny")) as session:
        (local,) = session.generate([request])
    assert served.text == local.text
    unasked = {"repeat_penalty": 1.1}
    with OpenAICompatible(llama_cpp, scoring="none", extra_body=unasked).build(Model()) as session:
        (penalised,) = session.generate([request])
    assert penalised.text != local.text, "the prompt shows what a penalty does"


def test_llama_cpp_pythons_server_is_refused_for_scoring(llama_cpp: str) -> None:
    tokenizer = str(builtin_path("builtin:tiny", "safetensors"))
    model = Model(tokenizer_path=tokenizer)
    with OpenAICompatible(llama_cpp, max_retries=0).build(model) as session:
        assert Capability.TOKEN_IDS not in session.capabilities
        with pytest.raises(UnsupportedRequestError, match=r"echo: .*valid string"):
            session.loglikelihood([LoglikelihoodRequest("a", "b")])
