"""Parameters and results of the requests of the fake TensorRT-LLM.

Prompt scores are in the place and of the tokens of that release; `LIE` makes them wrong.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from queue import Queue
from typing import Any, Self

import fake_trtllm_worker as worker
from packaging.version import Version

RELEASE = Version("1.2.1")
LIE: str | None = None
"""`shifted`, `missing` or `zero` log-probabilities of prompts."""


def since(first: str) -> bool:
    return Version(first) <= RELEASE


class RequestError(RuntimeError):
    """Ends one request alone."""


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] | None = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: Any = field(default_factory=list)
    prompt_logprobs: Any = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    _last_token_ids_len: int = field(default=0, init=False, repr=False)
    _last_logprobs_len: int = field(default=0, init=False, repr=False)

    @property
    def token_ids_diff(self) -> list[int]:
        return (self.token_ids or [])[self._last_token_ids_len :]

    @property
    def logprobs_diff(self) -> Any:
        return self.logprobs[self._last_logprobs_len :]


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    temperature: float | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_context_logits: bool = False
    ignore_eos: bool = False
    detokenize: bool = True

    def __post_init__(self) -> None:
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise ValueError(f"require 0 <= top_p <= 1, got top_p={self.top_p}")
        if self.temperature is not None and not 0 <= self.temperature <= worker.HOTTEST:
            raise ValueError(f"require temperature >= 0, got temperature={self.temperature}")

    @property
    def _is_greedy(self) -> bool:
        settings = (self.temperature, self.top_p, self.top_k)
        return settings == (None, None, None) or self.top_k == 1 or not self.temperature

    @property
    def _stops(self) -> list[int]:
        if self.ignore_eos and since("1.3.0rc1"):
            return []
        return self.stop_token_ids or []


class RequestOutput:
    """Made by `LLM.generate_async`; a request that runs."""

    cached_tokens: int
    _executor: Any
    _sequence: worker.Sequence
    _completion: CompletionOutput
    _context_logits: worker.Tensor | None
    _done: bool
    _loop: asyncio.AbstractEventLoop | None
    _queue: Any

    @classmethod
    def _of(cls, executor: Any, sequence: worker.Sequence) -> RequestOutput:
        output = cls.__new__(cls)
        output._executor, output._sequence = executor, sequence
        output._completion, output._context_logits = CompletionOutput(0), None
        output._done, output.cached_tokens = False, 0
        try:
            output._loop = asyncio.get_running_loop()
            output._queue = asyncio.Queue()
        except RuntimeError:
            output._loop, output._queue = None, Queue()
        sequence.send = output._put
        return output

    @property
    def request_id(self) -> int:
        return self._sequence.number

    @property
    def prompt_token_ids(self) -> list[int]:
        return self._sequence.prompt

    @property
    def outputs(self) -> list[CompletionOutput]:
        return [self._completion]

    @property
    def context_logits(self) -> Any:
        return self._context_logits

    @property
    def finished(self) -> bool:
        return self._done

    def abort(self) -> None:
        self._executor.abort_request(self.request_id)

    def result(self, timeout: float | None = None) -> Self:
        while not self._done:
            self._handle(self._queue.get(timeout=timeout))
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Self:
        if self._done:
            raise StopAsyncIteration
        self._handle(await self._queue.get())
        return self

    def _put(self, response: worker.Response) -> None:
        if self._loop is None:
            self._queue.put(response)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, response)

    def _handle(self, response: worker.Response) -> None:
        if response.error is not None:
            self._executor._handle_background_error(response.error)
        completion = self._completion
        completion._last_token_ids_len = len(completion.token_ids or [])
        completion._last_logprobs_len = len(completion.logprobs)
        completion.token_ids = [*(completion.token_ids or []), *response.token_ids]
        for entry in response.entries:
            completion.logprobs.append(worker.made(entry, Logprob))
        if response.rows is not None:
            self.cached_tokens = self._sequence.cached
            self._tell_of_prompt(response)
        self._done = response.reason is not None
        completion.finish_reason = response.reason
        if response.reason == "stop":
            completion.stop_reason = completion.token_ids[-1]
            if not self._sequence.params.include_stop_str_in_output:
                completion.token_ids = completion.token_ids[:-1]

    def _tell_of_prompt(self, response: worker.Response) -> None:
        params, rows = self._sequence.params, response.rows
        assert rows is not None
        if params.return_context_logits:
            self._context_logits = worker.Tensor(worker.lied(rows, LIE)[None])
        if params.prompt_logprobs:
            prompt, first = self.prompt_token_ids, response.token_ids[:1]
            added: list[int] | None = None
            if since("1.3.0rc11"):
                added = [*prompt[1:], *first]
            elif since("1.3.0rc6"):
                added = prompt
            listed = worker.ranked(rows, params.prompt_logprobs, added, LIE)
            self._completion.prompt_logprobs = [worker.made(entry, Logprob) for entry in listed]


UPSTREAM = {
    "RequestError": "tensorrt_llm.executor.utils.RequestError",
    "Logprob": "tensorrt_llm.executor.result.Logprob",
    "CompletionOutput": "tensorrt_llm.executor.result.CompletionOutput",
    "SamplingParams": "tensorrt_llm.sampling_params.SamplingParams",
    "RequestOutput": "tensorrt_llm.llmapi.llm.RequestOutput",
}
