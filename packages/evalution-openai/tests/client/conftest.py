"""A server that does what it is told, in memory, and a clock that passes without waiting."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from evalution_core import Model
from evalution_enginekit import ByteTokenizer
from evalution_enginekit.mock import table
from evalution_openai.client.retry import Clock
from evalution_openai.client.session import OpenAISession, build_session
from evalution_openai.engine import OpenAICompatible

Answer = Callable[[httpx.Request], httpx.Response]
Answers = Answer | Callable[[httpx.Request], Awaitable[httpx.Response]]
Lie = Callable[[dict[str, Any]], None]

TODAY = datetime(2026, 1, 1, tzinfo=UTC)


class VirtualClock(Clock):
    """Sleeping moves it on at once; `slept` is each wait that was asked for."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def today(self) -> datetime:
        return TODAY + timedelta(seconds=self.time)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


class ScriptedServer:
    """Completions, chat and tokenizer routes over a table of probabilities.

    `faults` are answers that come first, one for each request to a path that ends so. `lie` may
    change the choice of an answer with echoed log-probabilities. `routes` that are missing are 404.
    `everything`, where it is set, answers all requests.
    """

    def __init__(self) -> None:
        self.tokenizer = ByteTokenizer()
        self.table = table("scripted")
        self.routes = {"/models", "/completions", "/chat/completions", "/tokenize", "/detokenize"}
        self.owner = "scripted"
        self.window: int | None = 256
        self.takes_ids = True
        self.has_template = False
        self.faults: dict[str, deque[Answer]] = {}
        self.everything: Answers | None = None
        self.lie: Lie | None = None
        self.requests: list[httpx.Request] = []

    def fails(self, path: str, *answers: Answer) -> None:
        self.faults.setdefault(path, deque()).extend(answers)

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [json.loads(r.content) for r in self.requests if r.url.path.endswith(path)]

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        path = request.url.path.removeprefix("/v1")
        if self.everything is not None:
            answer = self.everything(request)
            return answer if isinstance(answer, httpx.Response) else await answer
        if self.faults.get(path):
            return self.faults[path].popleft()(request)
        if path not in self.routes:
            return httpx.Response(404, json={"detail": "Not Found"})
        body: dict[str, Any] = json.loads(request.content) if request.content else {}
        return self.routed(path, body)

    def routed(self, path: str, body: dict[str, Any]) -> httpx.Response:
        match path:
            case "/models":
                entry = {"id": "scripted", "owned_by": self.owner, "max_model_len": self.window}
                return httpx.Response(200, json={"data": [entry]})
            case "/tokenize" if "messages" in body:
                if not self.has_template:
                    return httpx.Response(400, json={"error": {"message": "no chat template"}})
                template = self.tokenizer.chat_template
                assert template is not None
                opens = body["add_generation_prompt"]
                text = template.render(body["messages"], add_generation_prompt=opens)
                return httpx.Response(200, json={"tokens": self.tokenizer.encode(text)})
            case "/tokenize":
                leading = [256] if body.get("add_special_tokens", True) else []
                tokens = leading + self.tokenizer.encode(body["prompt"])
                return httpx.Response(200, json={"tokens": tokens, "count": len(tokens)})
            case "/detokenize":
                text = self.tokenizer.decode(body["tokens"], skip_special_tokens=False)
                return httpx.Response(200, json={"prompt": text})
            case "/chat/completions" | "/completions" if body.keys() <= {"model"}:
                return httpx.Response(400, json={"error": {"message": "field required"}})
            case "/chat/completions":
                return self._completed(body, self.tokenizer.encode(str(body["messages"])))
            case _:
                prompt = body["prompt"]
                if not isinstance(prompt, str) and not self.takes_ids:
                    return httpx.Response(400, json={"error": {"message": "prompt: not a string"}})
                ids = prompt if isinstance(prompt, list) else self.tokenizer.encode(prompt)
                return self._completed(body, ids)

    def _completed(self, body: dict[str, Any], ids: list[int]) -> httpx.Response:
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        rows = [self.table.row(ids[:at]) for at in range(1, len(ids))]
        whole = list(ids)
        for _ in range(limit):
            rows.append(self.table.row(whole))
            whole.append(max(range(256), key=rows[-1].__getitem__))
        made = whole[len(ids) :]
        text = self.tokenizer.decode(made)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        if "messages" in body:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        if body.get("logprobs") and "messages" not in body:
            begin = 0 if body.get("echo") else len(ids)
            choice["logprobs"] = self._logprobs(whole, rows, begin, body["logprobs"])
            if body.get("echo") and self.lie is not None:
                self.lie(choice)
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(made)}
        answer = {"choices": [choice], "usage": {**usage, "total_tokens": len(whole)}}
        return (
            streamed(answer) if body.get("stream") else httpx.Response(200, text=json.dumps(answer))
        )

    def _logprobs(
        self, ids: Sequence[int], rows: Sequence[list[float]], begin: int, top: int
    ) -> dict[str, list[Any]]:
        values: list[Any] = [None, *(row[i] for row, i in zip(rows, ids[1:], strict=True))]
        listed: list[Any] = [None]
        for row in rows:
            best = sorted(range(256), key=lambda i, row=row: -row[i])[:top]
            listed.append({self.tokenizer.decode([i]): row[i] for i in best})
        tokens = [self.tokenizer.decode([i], skip_special_tokens=False) for i in ids]
        return {
            "tokens": tokens[begin:],
            "token_logprobs": values[begin:],
            "top_logprobs": listed[begin:],
        }


def streamed(answer: dict[str, Any], *, ends: bool = True) -> httpx.Response:
    """An answer as an event stream, its text in pieces of two characters."""
    choice = answer["choices"][0]
    chat = "message" in choice
    text = choice["message"]["content"] if chat else choice["text"]
    events: list[dict[str, Any]] = []
    for at in range(0, len(text), 2):
        piece = text[at : at + 2]
        part = {"delta": {"content": piece}} if chat else {"text": piece}
        events.append({"choices": [{"index": 0, **part, "finish_reason": None}]})
    if ends:
        part = {"delta": {}} if chat else {"text": ""}
        events.append({"choices": [{**part, "finish_reason": choice["finish_reason"]}]})
        events.append({"choices": [], "usage": answer["usage"]})
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    body = "".join([*lines, *(["data: [DONE]\n\n"] if ends else [])])
    return httpx.Response(200, text=body, headers={"content-type": "text/event-stream"})


def status(code: int, message: str = "no", **headers: str) -> Answer:
    """An error answer of OpenAI's form."""
    return lambda _: httpx.Response(code, json={"error": {"message": message}}, headers=headers)


@pytest.fixture
def server() -> ScriptedServer:
    return ScriptedServer()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def connect(server: ScriptedServer, clock: VirtualClock) -> Iterator[Callable[..., OpenAISession]]:
    """Builds sessions on the scripted server, closed at the end."""
    with ExitStack() as sessions:

        def build(model: Model | None = None, **options: Any) -> OpenAISession:
            session = build_session(
                OpenAICompatible(base_url="http://server.test", **options),
                model or Model("scripted"),
                transport=httpx.MockTransport(server),
                clock=clock,
                chance=random.Random(0),
            )
            return sessions.enter_context(session)

        yield build


@pytest.fixture
def faulty() -> Callable[..., Answer]:
    return status


@pytest.fixture
def as_stream() -> Callable[..., httpx.Response]:
    return streamed
