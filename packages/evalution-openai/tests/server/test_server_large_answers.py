"""Answers that would cost the server much: refused beforehand, or made and encoded aside."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from evalution_core import BaseInferenceSession


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a" * 300, "echo": True, "max_tokens": 0}),
        ("/v1/completions", {"prompt": ["a" * 100] * 3, "return_token_ids": True, "max_tokens": 1}),
        ("/v1/completions", {"prompt": [7] * 300, "echo": True, "logprobs": 1, "max_tokens": 1}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a" * 300}], "return_token_ids": True},
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_choices_repeat_no_more_of_prompts_than_a_body_has(
    serving: Any, mock: BaseInferenceSession, path: str, body: Any, stream: bool
) -> None:
    client = serving(session=mock, max_body_bytes=1000)
    generates = {"max_tokens": 1, "stream": stream, **body}
    assert client.post(path, json={**generates, "n": 3}).status_code == 200
    answer = client.post(path, json={**generates, "n": 4})
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert re.match(
        r"4 choices that each repeat their prompt would have 12\d\d characters or token ids of "
        r"prompts, and an answer may have 1000; ask for fewer choices, or leave out echo and ",
        message,
    )
    del generates["echo" if "echo" in body else "return_token_ids"]
    if body["max_tokens" if "max_tokens" in body else "messages"]:
        assert client.post(path, json={**generates, "n": 4}).status_code == 200


def check(served: Any, path: str, fields: dict[str, Any]) -> None:
    """Check the log-probabilities that a body asks for, as its route does."""
    from evalution_openai.server import bodies

    if "chat" in path:
        body: Any = bodies.ChatBody.model_validate({"messages": [{"role": "a"}], **fields})
        requests = bodies.make_chat_requests(body, served)
    else:
        body = bodies.CompletionBody.model_validate({"prompt": [65] * 70_000, **fields})
        requests = bodies.make_completion_requests(body, bodies.read_prompts(body, served), served)
    bodies.check_listed(body, requests, served)


@pytest.mark.parametrize(
    ("path", "fields", "allowed", "message"),
    [
        ("completions", {"logprobs": 1000, "max_tokens": 500}, 16, "1000 .* at up to 8500 .*8000"),
        ("completions", {"logprobs": 1, "max_tokens": 0, "echo": True}, 114, "1 .* up to 8050000 "),
        ("completions", {"logprobs": 0, "max_tokens": 99, "echo": True}, 114, "1 .* 8050000 "),
        (
            "chat/completions",
            {"logprobs": True, "top_logprobs": 1000, "max_tokens": 500},
            16,
            "1000 log-probabilities at up to 8500 tokens are more than the 8000000 that one answer",
        ),
    ],
)
def test_log_probabilities_of_an_answer_fit_into_memory(
    mock: BaseInferenceSession, path: str, fields: Any, allowed: int, message: str
) -> None:
    from evalution_openai.server.errors import ApiError
    from evalution_openai.server.serving import Metrics, ServedModel
    from evalution_openai.server.settings import ServerSettings

    served = ServedModel(mock, "mock", ServerSettings(), Metrics(lambda: None))
    check(served, path, {**fields, "n": allowed})
    with pytest.raises(ApiError, match=f"^{message}"):
        check(served, path, {**fields, "n": allowed + 1})


@pytest.mark.parametrize("stream", [False, True])
def test_chat_has_no_more_log_probabilities_than_fit_into_memory(
    serving: Any, mock: BaseInferenceSession, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    from evalution_openai.server.completions import _ChatCall

    body = {"logprobs": True, "top_logprobs": 3, "max_tokens": 2, "n": 2, "stream": stream}
    body["messages"] = [{"role": "user", "content": "ab"}]
    client = serving(session=mock)
    # A stream sends one choice at a time.
    monkeypatch.setattr(_ChatCall, "most_listed", 6 if stream else 12)
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert "more than" not in answer.text
    monkeypatch.setattr(_ChatCall, "most_listed", 5 if stream else 11)
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == (200 if stream else 400)
    tokens = 2 if stream else 4
    assert f"3 log-probabilities at up to {tokens} tokens are more than the" in answer.text


def test_prompts_of_which_no_token_is_listed_are_not_counted(mock: BaseInferenceSession) -> None:
    from evalution_openai.server.serving import Metrics, ServedModel
    from evalution_openai.server.settings import ServerSettings

    served = ServedModel(mock, "mock", ServerSettings(), Metrics(lambda: None))
    check(served, "completions", {"logprobs": 2, "max_tokens": 1, "n": 128})
    check(served, "completions", {"max_tokens": 0, "echo": True, "n": 128})


ROWS = [{"a": -1.5, "b\n": None}, {}, {"é": float("nan")}]
ENTRY = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": [{"token": "b"}] * 50}


@pytest.mark.parametrize(
    ("answer", "longest"),
    [
        ({"choices": [{"text": "a", "logprobs": {"content": [ENTRY] * 20}}], "usage": None}, 1000),
        ({"choices": [{"logprobs": {"top_logprobs": [None, *ROWS * 50]}}] * 2}, 30),
        ({"results": [{"top_logprobs": [{1: -1.0, 2: -2.0}] * 100, "error": {}}] * 3}, 30),
        ({"top_logprobs": [{1: -1.0, 2: -2.0}] * 100, "token_ids": list(range(9))}, 30),
        ({}, 2),
        ([], 2),
        ([[1], [2]], 9),
        ({"a": [{"b": [{"c": [{"d": [{"e": [{"f": 1}]}]}]}]}]}, 25),
        ({"a": (1, {2: 3})}, 20),
        (None, 4),
    ],
)
def test_a_long_answer_is_encoded_part_by_part(
    monkeypatch: pytest.MonkeyPatch, answer: Any, longest: int
) -> None:
    from evalution_openai.server import streaming

    encode, sizes = streaming.encode_json, list[int]()

    def watched(value: Any) -> bytes:
        sizes.append(len(encode(value)))
        return encode(value)

    monkeypatch.setattr(streaming, "encode_json", watched)
    assert streaming.encode_in_steps(answer) == encode(answer)
    assert max(sizes) <= longest


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "logprobs": 3, "max_tokens": 2, "n": 2}),
        ("/v1/completions", {"prompt": "a", "logprobs": 3, "max_tokens": 2, "stream": True}),
        ("/v1/completions", {"prompt": "ab", "logprobs": 1, "max_tokens": 0, "echo": True}),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 3, "max_tokens": 2, "n": 2}),
        ("/v1/chat/completions", {"logprobs": True, "max_tokens": 2, "stream": True}),
        ("/v1/completions", {"prompt": "a" * 99, "echo": True, "max_tokens": 1}),
        ("/v1/eval/rolling", {"text": "a" * 99, "top_logprobs": 2}),
        ("/v1/eval/rolling", {"requests": [{"text": "a" * 99}]}),
        ("/tokenize", {"prompt": "a" * 99}),
    ],
)
def test_long_answers_and_log_probabilities_are_encoded_off_the_event_loop(
    serving: Any, mock: BaseInferenceSession, monkeypatch: pytest.MonkeyPatch, path: str, body: Any
) -> None:
    from evalution_openai.server import answers, json_route, streaming

    encode, encode_in_steps = streaming.encode_json, streaming.encode_in_steps
    threads, on_loop = set[str](), list[bytes]()

    def watched(value: Any) -> bytes:
        encoded = encode(value)
        if threading.current_thread().name == "server":
            on_loop.append(encoded)
        return encoded

    def watched_steps(value: Any) -> bytes:
        threads.add(threading.current_thread().name)
        return encode_in_steps(value)

    monkeypatch.setattr(streaming, "encode_json", watched)
    monkeypatch.setattr(json_route, "LONG_TEXT", 90)
    monkeypatch.setattr(json_route, "encode_in_steps", watched_steps)
    monkeypatch.setattr(answers, "encode_in_steps", watched_steps)
    chat = {"messages": [{"role": "user", "content": "ab"}]} if "chat" in path else {}
    answer = serving(session=mock).post(path, json={**chat, **body})
    assert answer.status_code == 200
    assert threads == {"short texts_0"}
    assert [one for one in on_loop if not body.get("stream") or b'"logprobs":{' in one] == []
    if body.get("stream"):
        assert '"logprobs":{' in answer.text
    elif path != "/tokenize":
        assert answer.json()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["a", "b"], "logprobs": 3}),
        ("/v1/completions", {"prompt": ["a", "b"], "logprobs": 3, "echo": True}),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 3, "n": 2}),
    ],
)
def test_choices_with_log_probabilities_are_encoded_one_by_one(
    serving: Any, mock: BaseInferenceSession, monkeypatch: pytest.MonkeyPatch, path: str, body: Any
) -> None:
    from evalution_openai.server import answers, streaming

    encode_in_steps, encoded = streaming.encode_in_steps, list[Any]()

    def watched(value: Any) -> bytes:
        encoded.append(value)
        return encode_in_steps(value)

    monkeypatch.setattr(answers, "encode_in_steps", watched)
    chat = {"messages": [{"role": "user", "content": "ab"}]} if "chat" in path else {}
    answer = serving(session=mock).post(path, json={**chat, **body, "max_tokens": 2}).json()
    assert sorted(encoded, key=lambda choice: choice["index"]) == answer["choices"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 4


def test_event_loops_make_log_probabilities_in_turn(
    mock: BaseInferenceSession, monkeypatch: pytest.MonkeyPatch, until: Any
) -> None:
    from evalution_openai.server import answers, completions
    from evalution_openai.server.bodies import CompletionBody
    from evalution_openai.server.serving import Metrics, ServedModel
    from evalution_openai.server.settings import ServerSettings

    make, go_on = answers.make_token_lists, threading.Event()

    def gated(*args: Any) -> Any:
        assert go_on.wait(20)
        return make(*args)

    monkeypatch.setattr(completions, "make_token_lists", gated)
    served = ServedModel(mock, "mock", ServerSettings(), Metrics(lambda: None))
    body = CompletionBody.model_validate({"prompt": "a", "logprobs": 2, "max_tokens": 3})
    with ThreadPoolExecutor(3) as loops:
        asked = [loops.submit(asyncio.run, completions.complete(served, body)) for _ in range(3)]
        until(lambda: served.threads._short._work_queue.qsize() >= 2)
        go_on.set()
        encoded: list[Any] = [one.result(20) for one in asked]
    served.close()
    first, *others = [json.loads(one)["choices"] for one in encoded]
    assert first[0]["logprobs"]["tokens"]
    assert others == [first, first]
