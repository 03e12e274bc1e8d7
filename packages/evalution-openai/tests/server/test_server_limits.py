"""What one client may cost the others: long prompts, wide answers, messages that repeat a body."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from evalution_core import BaseInferenceSession, GenerationRequest


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
    monkeypatch.setattr(completions, "_LONG", 20)
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
    from evalution_openai.server.serving import ServedModel

    generate, sizes = ServedModel.generate, list[int]()

    async def watched(self: Any, requests: Sequence[GenerationRequest]) -> Any:
        sizes.append(len(requests))
        return await generate(self, requests)

    monkeypatch.setattr(ServedModel, "generate", watched)
    body = {"prompt": [65, 66, 67, 68, 69, 70], "echo": True, "logprobs": 3, "max_tokens": 1}
    client = serving(session=mock_without_rows)
    whole = client.post("/v1/completions", json=body).json()["choices"]
    monkeypatch.setattr(completions, "_PREFIXES", 2)
    assert client.post("/v1/completions", json=body).json()["choices"] == whole
    assert sizes == [1, 5, 1, 2, 2, 1]
