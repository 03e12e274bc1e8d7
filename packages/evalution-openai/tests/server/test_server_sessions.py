"""Sessions of every kind behind the server: what they lack, how they fail, who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from evalution_core import (
    BaseInferenceSession,
    Capability,
    EngineRuntimeError,
    GenerationOutput,
    LoglikelihoodOutput,
    RollingLoglikelihoodOutput,
)


class Plain(BaseInferenceSession):
    """As the Engine Guide has sessions: no tokenizer, no streaming, one call at a time."""

    def __init__(self) -> None:
        self.closed = False
        self.asked = 0

    def generate(self, requests: Any, *, batch_size: int | None = None) -> Any:
        self.asked += len(requests)
        return [GenerationOutput(r.prompt or "", f"<{r.prompt}>", r.metadata) for r in requests]

    def loglikelihood(self, requests: Any, *, batch_size: int | None = None) -> Any:
        return [LoglikelihoodOutput(-1.0, None, 1, r.metadata) for r in requests]

    def loglikelihood_rolling(self, requests: Any, *, batch_size: int | None = None) -> Any:
        return [RollingLoglikelihoodOutput(-2.0, 2, r.metadata) for r in requests]

    def generate_continuous(
        self, requests: Iterable[Any], *, batch_size: int | None = None
    ) -> Iterator[Any]:
        keyed = list(requests)  # a fixed batch: nothing runs before all of it is there
        outputs = self.generate([request for _, request in keyed])
        yield from zip((key for key, _ in keyed), outputs, strict=True)

    def gc(self) -> None: ...

    def close(self) -> None:
        self.closed = True


def test_minimal_session_is_served(serving: Any) -> None:
    client = serving(session=Plain())
    answer = client.post("/v1/completions", json={"prompt": ["a", "b"]}).json()
    assert [choice["text"] for choice in answer["choices"]] == ["<a>", "<b>"]
    assert answer["usage"] is None
    streamed = client.post("/v1/completions", json={"prompt": "a", "stream": True}).text
    assert streamed.count('"text":"<a>"') == 1
    assert streamed.endswith("data: [DONE]\n\n")
    scored = client.post("/v1/eval/loglikelihood", json={"context": "a", "continuation": "b"})
    assert scored.json()["logprob"] == -1.0
    assert client.post("/v1/eval/rolling", json={"text": "a"}).json()["logprob"] == -2.0


@pytest.mark.parametrize(
    ("path", "body", "needs"),
    [
        ("/v1/completions", {"prompt": [1, 2]}, "token_ids"),
        ("/v1/completions", {"prompt": "a", "logprobs": 1}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "logprobs": 1, "echo": True}, "token_ids"),
        ("/v1/completions", {"prompt": "a", "temperature": 1}, "sampling"),
        ("/v1/completions", {"prompt": "a", "ignore_eos": True}, "ignore_eos"),
        ("/v1/eval/loglikelihood", {"continuation_input_ids": [1]}, "token_ids"),
        ("/tokenize", {"prompt": "a"}, "tokenizer"),
        ("/detokenize", {"tokens": [1]}, "tokenizer"),
    ],
)
def test_missing_capability_is_refused_by_name(
    serving: Any, path: str, body: dict[str, Any], needs: str
) -> None:
    answer = serving(session=Plain()).post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "unsupported"
    assert needs in answer.json()["error"]["message"]


def test_tokenizer_info_needs_a_tokenizer(serving: Any) -> None:
    answer = serving(session=Plain()).get("/tokenizer_info")
    assert answer.json()["error"]["code"] == "unsupported"


class Failing(Plain):
    def generate_continuous(self, requests: Any, *, batch_size: int | None = None) -> Any:
        yield from ()
        raise EngineRuntimeError("the runtime fell over at https://user:pass@host/x")

    def loglikelihood(self, requests: Any, *, batch_size: int | None = None) -> Any:
        raise KeyError("nobody foresaw this")


def test_a_failing_engine_is_a_500_without_its_secrets(serving: Any, caplog: Any) -> None:
    client = serving(session=Failing())
    answer = client.post("/v1/completions", json={"prompt": "a"})
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert error["code"] == "engine_failed"
    assert "fell over" in error["message"]
    assert "pass" not in error["message"]
    odd = client.post("/v1/eval/loglikelihood", json={"context": "a", "continuation": "b"})
    assert odd.status_code == 500
    assert "foresaw" not in odd.text
    assert "nobody foresaw this" in caplog.text
    assert client.get("/health").status_code == 200


class HalfWay(Plain):
    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(Capability)

    def stream(self, requests: Any, *, batch_size: int | None = None) -> Any:
        from evalution_core import TextDelta

        key, _ = next(iter(requests))
        yield key, TextDelta("the beginning")
        raise EngineRuntimeError("fell over")


def test_failed_stream_ends_with_an_error_event(serving: Any) -> None:
    body = {"prompt": "a", "stream": True}
    answer = serving(session=HalfWay()).post("/v1/completions", json=body)
    assert answer.status_code == 200
    assert "the beginning" in answer.text
    assert "[DONE]" not in answer.text
    assert '"code":"engine_failed"' in answer.text.split("\n\n")[-2]


class Gated(Plain):
    """Holds every generation until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def generate(self, requests: Any, *, batch_size: int | None = None) -> Any:
        self.asked += 1
        self.gate.wait(20)
        return Plain.generate(self, requests)


def test_request_beyond_the_queue_gets_429(serving: Any, until: Any) -> None:
    session = Gated()
    client = serving(session=session, max_concurrent=1, max_queue=1)
    with ThreadPoolExecutor(2) as threads:
        held = [
            threads.submit(client.post, "/v1/completions", json={"prompt": "a"}) for _ in range(2)
        ]
        until(lambda: "evalution_requests_inside 2.0" in client.get("/metrics").text)
        full = client.post("/v1/completions", json={"prompt": "a"})
        assert full.status_code == 429
        assert full.headers["retry-after"] == "1"
        assert full.json()["error"]["code"] == "queue_full"
        until(lambda: session.asked == 1)
        session.gate.set()
        assert [one.result().status_code for one in held] == [200, 200]
    assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200


LONG = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True}


def leave_an_answer(client: httpx.Client, slow: Any, until: Any) -> None:
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=LONG, timeout=0.3)


def leave_a_stream(client: httpx.Client, slow: Any, until: Any) -> None:
    with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as answer:
        next(answer.iter_text())
        until(lambda: slow.requests_in_flight == 1)


@pytest.mark.parametrize("leave", [leave_an_answer, leave_a_stream])
def test_disconnect_frees_the_slot_in_the_session(
    serving: Any, slow: Any, leave: Callable[[httpx.Client, Any, Any], None], until: Any
) -> None:
    client = serving(session=slow)
    leave(client, slow, until)
    until(lambda: "evalution_requests_aborted_total 1.0" in client.get("/metrics").text)
    until(lambda: slow.requests_in_flight == 0)
    assert "evalution_requests_inside 0.0" in client.get("/metrics").text


def test_abort_does_not_affect_other_requests(
    serving: Any, slow: Any, until: Any, full_speed: threading.Event
) -> None:
    client = serving(session=slow)
    asked = {"prompt": "xyz", "max_tokens": 150, "ignore_eos": True}
    with ThreadPoolExecutor(3) as threads:
        staying = [threads.submit(client.post, "/v1/completions", json=asked) for _ in range(2)]
        until(lambda: slow.requests_in_flight == 2)
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json=LONG, timeout=0.1)
        full_speed.set()
        answers = [one.result() for one in staying]
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [150, 150]


def test_a_request_joins_while_others_run(
    serving: Any, slow: Any, until: Any, full_speed: threading.Event
) -> None:
    client = serving(session=slow)
    with ThreadPoolExecutor(1) as threads:
        long = threads.submit(
            client.post, "/v1/completions", json={**LONG, "max_tokens": 1500}, timeout=30
        )
        until(lambda: slow.requests_in_flight == 1)
        for limit in (3, 1, 2):
            short = {"prompt": "x", "max_tokens": limit, "ignore_eos": True, "temperature": 1.5}
            answer = client.post("/v1/completions", json=short)
            assert answer.json()["usage"]["completion_tokens"] == limit
        score = client.post("/v1/eval/loglikelihood", json={"context": "a", "continuation": "b"})
        assert score.status_code == 200
        assert not long.done()
        full_speed.set()
        assert long.result().json()["usage"]["completion_tokens"] == 1500


def test_waiting_request_of_a_disconnected_client_never_runs(serving: Any, until: Any) -> None:
    session = Gated()
    client = serving(session=session, max_concurrent=1)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(client.post, "/v1/completions", json={"prompt": "a"})
        until(lambda: session.asked == 1)
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json={"prompt": "b"}, timeout=0.2)
        until(lambda: "evalution_requests_inside 1.0" in client.get("/metrics").text)
        session.gate.set()
        assert first.result().status_code == 200
    assert client.post("/v1/completions", json={"prompt": "c"}).status_code == 200
    assert session.asked == 1 + 1 + 2  # `asked` counts calls and, once let go, requests


def test_many_clients_score_at_once_and_a_bad_one_fails_alone(
    client: httpx.Client, tiny: BaseInferenceSession
) -> None:
    bodies: list[dict[str, Any]] = [
        {"context": f"Tom has {n} apples.", "continuation": " Mia"} for n in range(40)
    ]
    bodies[7] = {"context": "a", "continuation_input_ids": [10**6]}

    def ask(body: dict[str, Any]) -> httpx.Response:
        return client.post("/v1/eval/loglikelihood", json=body)

    alone = [ask(body).json() for body in bodies]
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(ask, bodies))
    assert [answer.status_code for answer in answers] == [200] * 7 + [400] + [200] * 32
    for answer, expected in zip(answers, alone, strict=True):
        assert answer.json().get("logprob") == pytest.approx(expected.get("logprob"), abs=1e-9)
