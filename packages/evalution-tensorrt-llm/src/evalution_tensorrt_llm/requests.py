"""Requests at TensorRT-LLM: each by itself, or in fixed batches through `LLM.generate`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from evalution_core import EngineRuntimeError, EvalutionError
from evalution_core.redaction import scrub
from evalution_enginekit import TokenPrompt
from evalution_enginekit.serving import EventLoopRequests, RequestUpdate, SpanGroup, Work
from evalution_tensorrt_llm.outputs import generation_update, group_scores, scored_ids
from evalution_tensorrt_llm.parameters import Parameters
from evalution_tensorrt_llm.releases import Reading
from evalution_tensorrt_llm.upstream import Engine, Output

_log = logging.getLogger(__name__)

_GRACE_S = 10.0
"""How long an aborted request may take to end; the runtime ends it with its next step."""


@dataclass(frozen=True, slots=True)
class _Request:
    request_id: str
    work: Work
    token_ids: list[int]
    parameters: Any
    cache_salt: str | None

    def update(self, output: Output, reading: Reading) -> RequestUpdate:
        if isinstance(self.work, TokenPrompt):
            return generation_update(self.request_id, output, self.work)
        try:
            scores = group_scores(output, self.work, reading)
            return RequestUpdate(self.request_id, is_finished=True, scores=scores)
        except EngineRuntimeError as error:
            return RequestUpdate(self.request_id, is_finished=True, error=error)


class Requests:
    """Makes the requests of either form.

    Args:
        parameters: makes their sampling parameters.
        reading: what scores are read from.
        reuses_blocks: the runtime shares computed prefixes. A scored request then has a salt that
            no other one has: what comes from the cache has no rows.
    """

    def __init__(self, parameters: Parameters, reading: Reading, *, reuses_blocks: bool):
        self.parameters = parameters
        self.reading = reading
        self._reuses_blocks = reuses_blocks
        self._salts = count()

    def of(self, request_id: str, work: Work) -> _Request:
        """Raises InvalidRequestError: the runtime doesn't take such values."""
        if isinstance(work, TokenPrompt):
            made = self.parameters.generation(work)
            return _Request(request_id, work, list(work.token_ids), made, None)
        salt = f"evalution-{next(self._salts)}" if self._reuses_blocks else None
        token_ids = scored_ids(work, self.reading)
        return _Request(request_id, work, token_ids, self.parameters.scoring(), salt)


class AsyncRequests(EventLoopRequests):
    """A `ServingRuntime` on `LLM.generate_async`.

    Args:
        llm: TensorRT-LLM's engine.
        requests: makes the requests.
        loop: an event loop of their own.
    """

    def __init__(self, llm: Engine, requests: Requests, loop: asyncio.AbstractEventLoop):
        super().__init__(loop)
        self._llm = llm
        self._requests = requests
        # Upstream tells of a dead worker nowhere else, and who waits for its answer waits for ever.
        self._executor = llm._executor  # pyright: ignore[reportPrivateUsage]

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        self._start(request_id, prompt)

    def score(self, request_id: str, group: SpanGroup) -> None:
        self._start(request_id, group)

    def advance(self) -> list[RequestUpdate]:
        self._look()
        return super().advance()

    def _start(self, request_id: str, work: Work) -> None:
        request = self._requests.of(request_id, work)
        self.start(request_id, self._followed(request))

    def _look(self) -> None:
        """Raise what has ended the executor."""
        try:
            self._executor._handle_background_error()  # pyright: ignore[reportPrivateUsage]
        except self._requests.parameters.request_error as error:
            _log.warning("TensorRT-LLM: a request failed: %s", scrub(str(error)))
        if self._executor.is_shutdown():
            raise RuntimeError("TensorRT-LLM's executor has shut down")

    async def _followed(self, request: _Request) -> AsyncIterator[RequestUpdate]:
        streams = isinstance(request.work, TokenPrompt)
        output = self._submitted(request, streams=streams)
        try:
            async for said in output:
                if streams or said.finished:
                    yield request.update(said, self._requests.reading)
        except asyncio.CancelledError:
            await self._let_go(output)
            raise
        except self._requests.parameters.request_error as error:
            raise EngineRuntimeError(
                f"TensorRT-LLM failed the request: {scrub(str(error))}"
            ) from error

    def _submitted(self, request: _Request, *, streams: bool) -> Output:
        try:
            return self._llm.generate_async(
                {"prompt_token_ids": request.token_ids},
                request.parameters,
                streaming=streams,
                cache_salt=request.cache_salt,
            )
        except self._requests.parameters.refusals as error:
            raise self._requests.parameters.refused(error) from error

    async def _let_go(self, output: Output) -> None:
        """Abort a request, and wait until the runtime works on it no longer."""
        if output.finished or self._executor.is_shutdown():
            return
        output.abort()
        # Not `asyncio.timeout`: until Python 3.11.3 it is lost in a task that was cancelled
        # (https://github.com/python/cpython/issues/102780).
        ending = asyncio.ensure_future(_ended(output))
        done, _ = await asyncio.wait([ending], timeout=_GRACE_S)
        if not done:
            ending.cancel()
            raise RuntimeError(f"TensorRT-LLM didn't end an aborted request within {_GRACE_S:g} s")
        try:
            ending.result()
        except self._requests.parameters.request_error:
            return  # it has failed instead, so it is over


async def _ended(output: Output) -> None:
    async for _ in output:
        pass


class BatchRuns:
    """What `FixedBatchRequests` runs: one call of `LLM.generate` for a batch."""

    def __init__(self, llm: Engine, requests: Requests):
        self._llm = llm
        self._requests = requests

    def __call__(self, batch: Mapping[str, Work]) -> Iterator[RequestUpdate]:
        requests: list[_Request] = []
        for name, work in batch.items():
            try:
                requests.append(self._requests.of(name, work))
            except EvalutionError as error:
                yield RequestUpdate(name, is_finished=True, error=error)
        if not requests:
            return
        try:
            yield from self._run(requests)
        except self._requests.parameters.refusals:
            # It doesn't say whose fault it was.
            for request in requests:
                yield from self._alone(request)

    def _alone(self, request: _Request) -> Iterator[RequestUpdate]:
        try:
            yield from self._run([request])
        except self._requests.parameters.refusals as error:
            refused = self._requests.parameters.refused(error)
            yield RequestUpdate(request.request_id, is_finished=True, error=refused)

    def _run(self, requests: Sequence[_Request]) -> list[RequestUpdate]:
        salts = [request.cache_salt for request in requests]
        outputs = self._llm.generate(
            [{"prompt_token_ids": request.token_ids} for request in requests],
            [request.parameters for request in requests],
            use_tqdm=False,
            cache_salt=salts if any(salts) else None,
        )
        return [
            request.update(output, self._requests.reading)
            for request, output in zip(requests, outputs, strict=True)
        ]
