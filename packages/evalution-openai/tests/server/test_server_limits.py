"""What one client may cost the others: long prompts, wide answers, messages that repeat a body."""

from __future__ import annotations

import threading
from collections import Counter
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


@pytest.fixture
def asked(mock: BaseInferenceSession, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts calls of the mock's codec and of `describe_execution`, `NAME on the loop` apart."""
    counts = Counter[str]()

    def watch(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def watched(*args: Any, **more: Any) -> Any:
            is_loop = threading.current_thread().name == "server"
            counts[f"{name} on the loop" if is_loop else name] += 1
            return call(*args, **more)

        monkeypatch.setattr(owner, name, watched)

    watch(type(mock.tokenizer), "encode")
    watch(type(mock.tokenizer), "decode")
    watch(type(mock), "describe_execution")
    return counts


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "call"), [(["ab", "cd"], "encode"), ([[65, 66], [67, 68]], "decode")]
)
@pytest.mark.parametrize("facts", [False, True])
def test_echoed_prompt_is_encoded_or_decoded_once_and_off_the_event_loop(
    serving: Any,
    mock: BaseInferenceSession,
    asked: Counter[str],
    prompt: Any,
    call: str,
    stream: bool,
    facts: bool,
) -> None:
    client = serving(session=mock)
    asked.clear()
    body = {"prompt": prompt, "echo": True, "max_tokens": 0, "n": 3, "stream": stream}
    answer = client.post("/v1/completions", json={**body, "return_token_ids": facts})
    assert answer.status_code == 200
    assert [answer.text.count(f'"text":"{text}"') for text in ("AB", "CD", "ab", "cd")] == (
        [3, 3, 0, 0] if call == "decode" else [0, 0, 3, 3]
    )
    assert asked == {call: 2}


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_of_several_choices_is_encoded_once(
    serving: Any, mock: BaseInferenceSession, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    from evalution_openai.server.serving import ServedModel

    encode, texts = ServedModel.encode_prompt, list[str]()

    def watched(self: Any, text: str) -> Any:
        texts.append(text)
        return encode(self, text)

    monkeypatch.setattr(ServedModel, "encode_prompt", watched)
    client = serving(session=mock)
    body = {"max_tokens": 1, "n": 3, "return_token_ids": True, "stream": stream}
    chat = {"messages": [{"role": "user", "content": "ab"}], **body}
    for path, one in (
        ("completions", {"prompt": ["ab", "cd"], **body}),
        ("completions", {"prompt": [[65, 66]], "echo": True, **body}),
        ("chat/completions", chat),
    ):
        assert client.post(f"/v1/{path}", json=one).text.count('"prompt_token_ids":[') in (3, 6)
    assert sorted(texts[:2]) == ["ab", "cd"]
    assert len(texts) == 3


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [65, 66], "echo": True, "max_tokens": 2}),
        ("/v1/completions", {"prompt": [65, 66], "echo": True, "max_tokens": 2, "stream": True}),
        ("/v1/completions", {"prompt": "ab", "logprobs": 2, "max_tokens": 2}),
        ("/v1/completions", {"prompt": "ab", "echo": True, "logprobs": 2, "max_tokens": 0}),
        ("/v1/completions", {"prompt": "ab", "logprobs": 2, "max_tokens": 2, "stream": True}),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 2, "max_tokens": 2}),
        ("/v1/chat/completions", {"logprobs": True, "max_tokens": 2, "stream": True}),
        ("/tokenizer_info", None),
        ("/v1/models", None),
    ],
)
def test_event_loop_waits_for_no_codec_and_no_description(
    serving: Any, mock: BaseInferenceSession, asked: Counter[str], path: str, body: Any
) -> None:
    client = serving(session=mock)
    if body is None:
        answer = client.get(path)
    else:
        chat = {"messages": [{"role": "user", "content": "ab"}]} if "chat" in path else {}
        answer = client.post(path, json={**chat, **body})
    assert answer.status_code == 200
    assert asked["describe_execution"] == 1
    assert [name for name in asked if name.endswith("loop")] == []
    if path != "/v1/models":
        assert asked["decode"] + asked["encode"]


def test_served_model_is_made_off_the_event_loop(serving: Any, asked: Counter[str]) -> None:
    client = serving(engine=Mock(), model="mock")
    assert client.get("/v1/models/mock").json()["dtype"] == "float64"
    assert client.get("/v1/models").json()["data"][0]["dtype"] == "float64"
    assert asked == {"describe_execution": 1}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a" * 60}),
        ("/v1/completions", {"prompt": ["a" * 30, "a"]}),
        ("/v1/completions", {"prompt": [7] * 30}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "x": [1] * 30}]}),
        ("/v1/eval/loglikelihood", {"context": "a" * 60, "continuation": "b"}),
        ("/v1/eval/rolling", {"text": "a" * 60}),
    ],
)
@pytest.mark.parametrize(("long", "is_aside"), [(60, True), (1000, False)])
def test_long_bodies_are_checked_off_the_event_loop(
    serving: Any,
    mock: BaseInferenceSession,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: Any,
    long: int,
    is_aside: bool,
) -> None:
    from evalution_openai.server import completions, evaluation
    from evalution_openai.server.serving import ServedModel

    check, threads = ServedModel.check_request, set[str]()

    def watched(self: Any, request: Any) -> None:
        threads.add(threading.current_thread().name)
        check(self, request)

    monkeypatch.setattr(ServedModel, "check_request", watched)
    monkeypatch.setattr(completions, "LONG_TEXT", long)
    monkeypatch.setattr(evaluation, "LONG_TEXT", long)
    generates = {"max_tokens": 1} if "completions" in path else {}
    answer = serving(session=mock).post(path, json={**body, **generates})
    assert answer.status_code == 200
    (thread,) = threads
    assert (thread != "server") == is_aside


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
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 6}]}),
        ("/v1/chat/completions", {"messages": [{"role": "a" * 9, "content": ""}]}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user"}], "chat_template_kwargs": {"x": "a" * 12}},
        ),
        ("/v1/eval/loglikelihood", {"context": "a" * 11, "continuation": "a" * 10}),
        ("/v1/eval/loglikelihood/rolling", {"text": "a" * 21}),
    ):
        answer = client.post(path, json=asked)
        assert answer.status_code == 400, path
        assert answer.json()["error"]["code"] == "text_too_long", path
        assert answer.json()["error"]["message"] == (
            "a text of at least 21 characters or token ids is longer than the 20 that this server "
            "takes; send it in parts, or start the server with --max-text"
        )


def test_long_text_in_a_batch_fails_alone(serving: Any, mock: BaseInferenceSession) -> None:
    client = serving(session=mock, max_text=20)
    for path, short, long in (
        ("/v1/eval/loglikelihood", {"context": "a", "continuation": "b"}, {"context": "a" * 21}),
        ("/v1/eval/loglikelihood/rolling", {"text": "ab"}, {"text": "a" * 21}),
    ):
        asked = [short, {**short, **long}, short]
        answer = client.post(path, json={"requests": asked})
        assert answer.status_code == 200
        first, refused, last = answer.json()["results"]
        assert first["logprob"] == last["logprob"] < 0
        assert refused["error"]["code"] == "text_too_long"
        assert refused["error"]["message"].startswith("a text of at least 2")
        assert client.post(path, json=asked[1]).status_code == 400


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
    assert sizes == [5, 2, 2, 1]
