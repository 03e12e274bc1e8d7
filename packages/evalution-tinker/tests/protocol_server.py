"""The sampling half of the Tinker protocol over the tiny model: real numbers, in one process.

It answers clients from 0.24 (JSON) to 0.38 (protobuf). `quirks` make it behave as servers were seen
to: `short` (no entry for the first prompt token), `odd` (two are missing), `silent` (no prompt
log-probabilities), `no-topk`, `no-suffix`, `json-only` and `no-ids` (an older protocol), and
`forbidden`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

import numpy as np
from tinker.proto import tinker_public_pb2 as wire

from evalution_core.builtins import builtin_path
from evalution_enginekit import TokenizerFile, TokenPrompt
from evalution_enginekit.sampling import TokenChoice
from evalution_reference.llama import Llama
from evalution_reference.load import load_checkpoint

NAME = "builtin:tiny"
ROOT = "/api/v1/"


class ProtocolServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        folder = builtin_path("builtin:tiny", "safetensors")
        self.llama = Llama(*load_checkpoint(folder), "float32")
        self.tokenizer = TokenizerFile(folder / "tokenizer.json")
        self.quirks: set[str] = set()
        self.window: int | None = 514
        self.asked: list[dict[str, Any]] = []
        self.numbers = count()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def sampled(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the protocol answers to a request, with rows of numbers."""
        params = request["sampling_params"]
        ids = [i for chunk in request["prompt"]["chunks"] for i in chunk["tokens"]]
        stop = params.get("stop")
        stop = [*self.tokenizer.eos_ids] if stop is None else stop
        texts = [stop] if isinstance(stop, str) else [s for s in stop if isinstance(s, str)]
        ends = {s for s in stop if isinstance(s, int)}
        if texts:
            ends |= self.tokenizer.eos_ids
        hot = params["temperature"] > 0
        prompt = TokenPrompt(
            0,
            ids,
            params["max_tokens"],
            do_sample=hot,
            temperature=params["temperature"],
            top_p=params["top_p"],
            top_k=max(params["top_k"], 0),
            seed=params.get("seed"),
            logprobs=max(request.get("topk_sample_logprobs", 0), 1),
        )
        with self.lock:
            cache = self.llama.new_cache()
            hidden = self.llama.hidden_states(np.array(ids), cache)
            rows = self.llama.logits(hidden)
            choice = TokenChoice(prompt)
            tokens: list[int] = []
            logprobs: list[float] = []
            top: list[dict[int, float]] = []
            reason, row = "length", rows[-1]
            while len(tokens) < params["max_tokens"]:
                event = choice.take(row)
                tokens += event.token_ids
                logprobs += event.logprobs or ()
                top += event.top_logprobs or ()
                text = self.tokenizer.decode(tokens)
                if tokens[-1] in ends or any(s in text for s in texts):
                    reason = "stop"
                    break
                hidden = self.llama.hidden_states(np.array(tokens[-1:]), cache)
                row = self.llama.logits(hidden)[-1]
        return {
            "type": "sample",
            "sequences": [
                {"tokens": tokens, "logprobs": logprobs, "stop_reason": reason, "top": top}
            ],
            **self._prompt(request, ids, rows),
        }

    def _prompt(self, request: dict[str, Any], ids: list[int], rows: Any) -> dict[str, Any]:
        if not request.get("prompt_logprobs") or "silent" in self.quirks:
            return {}
        wide = rows[:-1].astype(np.float64)
        logs = wide - np.log(np.exp(wide - wide.max(-1, keepdims=True)).sum(-1, keepdims=True))
        logs -= wide.max(-1, keepdims=True)
        values: list[Any] = [None, *(float(logs[at, i]) for at, i in enumerate(ids[1:]))]
        k = request.get("topk_prompt_logprobs", 0)
        best = [[(int(i), float(row[i])) for i in np.argsort(-row)[:k]] for row in logs]
        found: dict[str, Any] = {"prompt_logprobs": values}
        if k and "no-topk" not in self.quirks:
            found["topk_prompt_logprobs"] = [None, *best]
        last = request.get("prompt_logprobs_last_n")
        if last and "no-suffix" not in self.quirks:
            for name in found:
                found[name] = [None] * (len(ids) - last) + found[name][len(ids) - last :]
        missing = 1 if "short" in self.quirks else 2 if "odd" in self.quirks else 0
        return {name: listed[missing:] for name, listed in found.items()}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ProtocolServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        path = self.path.removeprefix(ROOT)
        if "forbidden" in self.server.quirks:
            self._answer({"detail": "no such key"}, 401)
        elif path == "get_server_capabilities":
            model = {"model_name": NAME, "max_context_length": self.server.window}
            self._answer({"supported_models": [model]})
        elif path.startswith("samplers/"):
            self._answer({"sampler_id": path.partition("/")[2], "base_model": NAME})
        elif self.path == "/openapi.json":
            self._answer({"info": {"title": "Protocol server", "version": "0.1"}})
        else:
            self._answer({"status": "ok"})

    def do_POST(self) -> None:
        body: Any = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        path = self.path.removeprefix(ROOT)
        if path == "asample":
            self.server.asked.append(body)
            if body["sampling_params"]["max_tokens"] < 1:
                return self._answer({"detail": "max_tokens must be at least 1"}, 400)
            length = sum(len(chunk["tokens"]) for chunk in body["prompt"]["chunks"])
            length += body["sampling_params"]["max_tokens"]
            if self.server.window is not None and length > self.server.window:
                detail = f"Prompt length plus max_tokens exceeds {self.server.window}: {length}"
                return self._answer({"detail": detail}, 400)
            number = next(self.server.numbers)
            ids = {} if "no-ids" in self.server.quirks else {"sample_sequence_ids": [f"q{number}"]}
            return self._answer({"request_id": str(len(self.server.asked) - 1), **ids})
        if path == "retrieve_future":
            answer = self.server.sampled(self.server.asked[int(body["request_id"])])
            accepts = "application/x-protobuf" in self.headers.get("Accept", "")
            accepts = accepts and hasattr(wire, "TopkLogprobs")  # else a client that takes JSON too
            if accepts and "json-only" not in self.server.quirks:
                return self._send(_encoded(answer), "application/x-protobuf", 200)
            return self._answer(answer)
        return self._answer(
            {
                "client/config": {},
                "create_session": {"session_id": f"s{next(self.server.numbers)}"},
                "create_sampling_session": {
                    "sampling_session_id": f"ss{next(self.server.numbers)}"
                },
                "telemetry": {"status": "accepted"},
            }.get(path, {})
        )

    def _answer(self, found: dict[str, Any], status: int = 200) -> None:
        self._send(json.dumps(found).encode(), "application/json", status)

    def _send(self, content: bytes, kind: str, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None: ...


def _encoded(answer: dict[str, Any]) -> bytes:
    """The answer as the newest clients read it."""
    message = wire.SampleResponse()
    for found in answer["sequences"]:
        stopped = found["stop_reason"] == "stop"
        message.sequences.add(
            stop_reason=wire.STOP_REASON_STOP if stopped else wire.STOP_REASON_LENGTH,
            tokens=np.array(found["tokens"], dtype=np.int32).tobytes(),
            logprobs=np.array(found["logprobs"], dtype=np.float32).tobytes(),
            topk_sampled_logprobs=_dense([list(row.items()) for row in found["top"]]),
        )
    if (listed := answer.get("prompt_logprobs")) is not None:
        message.prompt_logprobs = np.array(listed, dtype=np.float32).tobytes()
    if (rows := answer.get("topk_prompt_logprobs")) is not None:
        message.topk_prompt_logprobs.CopyFrom(_dense(rows))
    return message.SerializeToString()


def _dense(rows: list[Any]) -> Any:
    width = max((len(row) for row in rows if row), default=0)
    cells = [[*(row or ()), *[(0, -99999.0)] * (width - len(row or ()))] for row in rows]
    return wire.TopkLogprobs(
        token_ids=np.array([[i for i, _ in row] for row in cells], dtype=np.int32).tobytes(),
        logprobs=np.array([[v for _, v in row] for row in cells], dtype=np.float32).tobytes(),
        k=width,
        length=len(rows),
    )


@contextmanager
def serving() -> Generator[ProtocolServer]:
    """A server on a free port of this machine, until the context ends."""
    with ProtocolServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
