"""What one client may cost the others: long prompts, wide answers, messages that repeat a body."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from evalution_core import BaseInferenceSession, GenerationRequest, Model
from evalution_enginekit.async_session import AsyncSession
from evalution_enginekit.mock import Mock


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "abc"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "abc"}]}),
    ],
)
def test_prompts_are_encoded_off_the_event_loop(
    serving: Any,
    mock: BaseInferenceSession,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    asked: Any,
    stream: bool,
) -> None:
    from evalution_openai.server.serving import ServedModel

    encode, threads = ServedModel.encode_prompt, set[str]()

    def watched(self: Any, text: str) -> Any:
        threads.add(threading.current_thread().name)
        return encode(self, text)

    monkeypatch.setattr(ServedModel, "encode_prompt", watched)
    body = {**asked, "return_token_ids": True, "max_tokens": 2, "stream": stream}
    answer = serving(session=mock).post(path, json=body)
    assert '"prompt_token_ids":[' in answer.text
    assert threads
    assert "server" not in threads, "the event loop's own"


@pytest.mark.parametrize("prompt", ["a" * 21, ["a" * 20, "a"], [7] * 21, [[7] * 20, [7]]])
def test_long_prompts_are_checked_off_the_event_loop(
    serving: Any, mock: BaseInferenceSession, monkeypatch: pytest.MonkeyPatch, prompt: Any
) -> None:
    from evalution_openai.server import completions
    from evalution_openai.server.serving import ServedModel

    admit, threads = ServedModel.validate, list[str]()

    def watched(self: Any, requests: Any) -> None:
        threads.append(threading.current_thread().name)
        admit(self, requests)

    monkeypatch.setattr(ServedModel, "validate", watched)
    monkeypatch.setattr(completions, "LONG_TEXT", 20)
    client = serving(session=mock)
    for asked, is_aside in ((prompt, True), ("a", False)):
        answer = client.post("/v1/completions", json={"prompt": asked, "max_tokens": 1})
        assert answer.status_code == 200
        assert (threads.pop() != "server") == is_aside


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"stop": ["x"] * 65}, "at most 64 items"),
        ({"stop": "x" * 1001}, "at most 1000 characters"),
        ({"logprobs": 1000, "max_tokens": 100, "n": 128}, "1000 log-probabilities at up to 12800"),
    ],
)
def test_answer_with_too_many_logprobs_is_refused(
    serving: Any, mock: BaseInferenceSession, body: Any, message: str
) -> None:
    answer = serving(session=mock).post("/v1/completions", json={"prompt": "a", **body})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_text_beyond_the_limit_is_refused(serving: Any, mock: BaseInferenceSession) -> None:
    client = serving(session=mock, max_text=20)
    for path, asked in (
        ("/tokenize", {"prompt": "a" * 21}),
        ("/detokenize", {"tokens": [65] * 21}),
        ("/v1/completions", {"prompt": "a" * 21}),
        ("/v1/completions", {"prompt": ["a", "a" * 21], "echo": True, "logprobs": 1}),
        ("/v1/completions", {"prompt": [65] * 21}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 21}]}),
        ("/v1/eval/loglikelihood", {"context": "a" * 11, "continuation": "a" * 10}),
        ("/v1/eval/loglikelihood/rolling", {"text": "a" * 21}),
    ):
        answer = client.post(path, json=asked)
        assert answer.status_code == 400, path
        assert answer.json()["error"]["code"] == "text_too_long", path
        assert answer.json()["error"]["message"] == (
            "a text of 21 characters or token ids is longer than the 20 that this server takes; "
            "send it in parts, or start the server with --max-text"
        )


def test_limit_of_a_text_follows_what_the_model_takes(mock: BaseInferenceSession) -> None:
    from evalution_openai.server.serving import Metrics, ServedModel
    from evalution_openai.server.settings import ServerSettings

    served = ServedModel(mock, "mock", ServerSettings(), Metrics(lambda: None))
    assert served.max_text == 2**20
    with Mock(max_model_len=1_000_000).build(Model("mock")) as session:
        served = ServedModel(session, "mock", ServerSettings(), Metrics(lambda: None))
        assert served.max_text == 8_000_000


def test_texts_of_clients_that_left_are_not_encoded(
    serving: Any, mock: BaseInferenceSession, monkeypatch: pytest.MonkeyPatch, until: Any
) -> None:
    tokenizer: Any = type(mock.tokenizer)  # type: ignore[attr-defined]
    encode, begun, go_on = tokenizer.encode, list[str](), threading.Event()

    def slow(self: Any, text: str) -> list[int]:
        begun.append(text[:1])
        assert go_on.wait(10)
        return encode(self, text)

    monkeypatch.setattr(tokenizer, "encode", slow)
    client = serving(session=mock)
    long = 40_000
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(client.post, "/tokenize", json={"prompt": "a" * long})
        until(lambda: begun == ["a"])
        for letter in "bc":
            with pytest.raises(httpx.ReadTimeout):
                client.post("/tokenize", json={"prompt": letter * long}, timeout=0.2)
        until(lambda: "evalution_requests_inside 1.0" in client.get("/metrics").text)
        short = threads.submit(client.post, "/tokenize", json={"prompt": "s"})
        until(lambda: begun == ["a", "s"])
        go_on.set()
        assert first.result().json()["count"] >= long
        assert short.result().status_code == 200
    assert client.post("/tokenize", json={"prompt": "d" * long}).status_code == 200
    assert begun == ["a", "s", "d"]


def test_error_message_is_cut_short(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json={"prompt": "a", "model": "x" * 100_000})
    assert answer.status_code == 404
    assert len(answer.content) < 3000


def test_a_long_text_is_encoded_while_others_are_answered(
    serving: Any, mock: BaseInferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer: Any = type(mock.tokenizer)  # type: ignore[attr-defined]
    encode, begun, go_on = tokenizer.encode, threading.Event(), threading.Event()

    def slow(self: Any, text: str) -> list[int]:
        if text == "long":
            begun.set()
            assert go_on.wait(10)
        return encode(self, text)

    monkeypatch.setattr(tokenizer, "encode", slow)
    client = serving(session=mock)
    answers: list[httpx.Response] = []
    asking = threading.Thread(
        target=lambda: answers.append(client.post("/tokenize", json={"prompt": "long"}))
    )
    asking.start()
    assert begun.wait(10)
    assert client.get("/health").status_code == 200
    go_on.set()
    asking.join()
    assert answers[0].status_code == 200


def test_prefixes_of_a_long_prompt_are_scored_a_few_at_a_time(
    serving: Any, mock_without_rows: BaseInferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalution_openai.server import completions

    complete, sizes = AsyncSession.complete, list[int]()

    async def watched(self: AsyncSession, requests: Sequence[GenerationRequest]) -> Any:
        sizes.append(len(requests))
        return await complete(self, requests)

    monkeypatch.setattr(AsyncSession, "complete", watched)
    body = {"prompt": [65, 66, 67, 68, 69, 70], "echo": True, "logprobs": 3, "max_tokens": 1}
    client = serving(session=mock_without_rows)
    whole = client.post("/v1/completions", json=body).json()["choices"]
    monkeypatch.setattr(completions, "_PREFIXES", 2)
    assert client.post("/v1/completions", json=body).json()["choices"] == whole
    assert sizes == [1, 5, 1, 2, 2, 1]
