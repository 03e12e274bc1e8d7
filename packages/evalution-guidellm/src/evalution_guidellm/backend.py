"""GuideLLM's backend of kind `evalution`: requests go to a session in the worker process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from guidellm.backends import Backend, OpenAIRequestHandlerFactory
from guidellm.schemas import (
    GenerationRequest,
    GenerationRequestArguments,
    GenerationResponse,
    RequestInfo,
    RequestTimings,
    UsageMetrics,
)

from evalution_core import BaseInferenceSession, GenerationOutput, TextDelta
from evalution_core import GenerationRequest as SessionRequest
from evalution_enginekit.async_session import AsyncSession
from evalution_guidellm.arguments import EvalutionBackendArgs, make_request
from evalution_guidellm.bench.subject import locate_tokenizer

History = list[tuple[GenerationRequest, GenerationResponse | None]]


@Backend.register("evalution")
class EvalutionBackend(Backend):
    """Any engine under GuideLLM's load: started in each worker, stopped, and started again at will.

    Before and between starts it is configuration alone, which is also what a pickle of it holds.

    Args:
        arguments: the engine and the model.
    """

    def __init__(self, arguments: EvalutionBackendArgs):
        super().__init__(arguments)
        self._arguments = arguments
        # GuideLLM reads it of the object; where it is true, the main process builds no session.
        self.backend_defines_model = not arguments.check_first  # pyright: ignore[reportAttributeAccessIssue]
        self._session: BaseInferenceSession | None = None
        self._front: AsyncSession | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None, "_front": None}

    @property
    def processes_limit(self) -> int | None:
        limit = self._arguments.make_engine().processes_limit
        return min(self._arguments.processes, limit or self._arguments.processes)

    @property
    def requests_limit(self) -> int | None:
        return self._arguments.make_engine().requests_limit

    async def default_model(self) -> str:
        """Return the folder or Hub name by which GuideLLM loads a tokenizer by default."""
        return locate_tokenizer(self._arguments.make_model(self._arguments.make_engine())) or ""

    async def process_startup(self) -> None:
        """Build the session.

        Raises:
            EvalutionError: the engine or the model can't be had; the message says why.
        """
        if self._session is not None:
            raise RuntimeError("the backend runs already; shut it down first")
        engine = self._arguments.make_engine()
        # In this thread, and so in the main one: a runtime may set signal handlers as it starts.
        self._session = engine.build(self._arguments.make_model(engine))
        self._front = AsyncSession(self._session, batch_size=self._arguments.batch_size)

    async def process_shutdown(self) -> None:
        """Cancel the requests in flight and close the session; of a stopped backend, nothing."""
        if self._front is not None and self._session is not None:
            self._front.close()
            self._session.close()
        self._front = self._session = None

    async def validate(self) -> None:
        """Have one token generated in the form of the requests to come.

        Raises:
            EvalutionError: the model can't do that; it has no chat template, say.
        """
        front = self._get_front()
        probe = GenerationRequest(columns={"text_column": ["Hello"]})
        probe.output_metrics.text_tokens = 1
        request = self._make_request(self._make_body(probe, None))
        request.ignore_eos = False
        await front.generate(request)

    async def resolve(  # pyright: ignore[reportIncompatibleMethodOverride] - it is a generator upstream
        self,
        request: GenerationRequest,
        request_info: RequestInfo,
        history: History | None = None,
    ) -> AsyncGenerator[tuple[GenerationResponse | None, RequestInfo]]:
        """Run one request: `None` once its first token is there, then the response.

        A request that is cancelled is given up, and what there is of it is yielded.
        """
        front = self._get_front()
        body = self._make_body(request, history)
        is_timed = self._arguments.stream and front.streams_text
        answer = Answer(request, body, request_info.timings, streams_tokens=is_timed)
        request_info.timings.request_start = time.time()
        try:
            async with aclosing(self._stream(front, body)) as events:
                async for event in events:
                    if answer.take(event, time.time()):
                        yield None, request_info
        except asyncio.CancelledError:
            yield answer.make_response(), request_info
            raise
        yield answer.make_response(), request_info

    def _get_front(self) -> AsyncSession:
        if self._front is None:
            raise RuntimeError("the backend doesn't run; call process_startup() first")
        return self._front

    def _make_body(
        self, request: GenerationRequest, history: History | None
    ) -> GenerationRequestArguments:
        """Return the body that GuideLLM would send to a server for the same request."""
        handler: Any = OpenAIRequestHandlerFactory.create(self._arguments.request_format)
        return handler.format(
            request,
            history=history,
            stream=self._arguments.stream,
            extras=self._arguments.extras,
            max_tokens=self._arguments.max_tokens,
        )

    def _make_request(self, body: GenerationRequestArguments) -> SessionRequest:
        assert self._session is not None
        return make_request(body.body or {}, self._session.capabilities)

    async def _stream(
        self, front: AsyncSession, body: GenerationRequestArguments
    ) -> AsyncGenerator[TextDelta | GenerationOutput]:
        """Run a body; without a stream its text comes in one piece, then the output."""
        request = self._make_request(body)
        if self._arguments.stream:
            async with aclosing(front.stream(request)) as events:
                async for event in events:
                    yield event
            return
        output = await front.generate(request)
        yield TextDelta(output.text, tuple(output.token_ids or ()))
        yield output


@dataclass(slots=True)
class Answer:
    """Collects the events of one request.

    Args:
        request: GuideLLM's own.
        arguments: the body that was made of it, for the report.
        timings: get their stamps here.
        streams_tokens: True if pieces come as tokens are generated; if not, the time of the
            first token is unknown and left out.
    """

    request: GenerationRequest
    arguments: GenerationRequestArguments
    timings: RequestTimings
    streams_tokens: bool
    _pieces: list[str] = field(default_factory=list[str])
    _tokens: int = 0
    _output: GenerationOutput | None = None

    def take(self, event: TextDelta | GenerationOutput, now: float) -> bool:
        """Record an event that came at `now`, in Unix time; return True for the first token."""
        if isinstance(event, GenerationOutput):
            self._output = event
            self.timings.request_end = now
            return False
        timings = self.timings
        if timings.first_request_iteration is None:
            timings.first_request_iteration = now
        timings.last_request_iteration = now
        timings.request_iterations += 1
        self._pieces.append(event.text)
        self._tokens += len(event.token_ids)
        if not self.streams_tokens or not (event.text or event.token_ids):
            return False
        is_first = timings.first_token_iteration is None
        if is_first:
            timings.first_token_iteration = now
            timings.first_output_token_iteration = now
        timings.last_token_iteration = now
        timings.token_iterations += 1
        return is_first

    def make_response(self) -> GenerationResponse:
        """Return the answer so far: of a cancelled request, its text and tokens until then."""
        output = self._output
        text = output.text if output else "".join(self._pieces)
        return GenerationResponse(
            request_id=self.request.request_id,
            request_args=self.arguments.model_dump_json(),
            text=text,
            input_metrics=UsageMetrics(text_tokens=output.prompt_tokens if output else None),
            output_metrics=UsageMetrics(
                text_tokens=output.completion_tokens if output else self._tokens,
                text_words=len(text.split()),
                text_characters=len(text),
            ),
        )
