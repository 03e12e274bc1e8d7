"""A session between a backend's start and its stop, and the answer to one request of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from guidellm.backends import OpenAIRequestHandlerFactory
from guidellm.schemas import (
    GenerationRequest,
    GenerationRequestArguments,
    GenerationResponse,
    RequestTimings,
    UsageMetrics,
)

from evalution_core import BaseInferenceSession, GenerationOutput, TextDelta
from evalution_core import GenerationRequest as SessionRequest
from evalution_enginekit.async_session import AsyncSession
from evalution_guidellm.arguments import EvalutionBackendArgs, make_request

History = list[tuple[GenerationRequest, GenerationResponse | None]]


class LiveSession:
    """A session that GuideLLM's requests join, and that is closed with this.

    Args:
        session: freshly built.
        arguments: the form of requests.
    """

    def __init__(
        self,
        session: BaseInferenceSession,
        arguments: EvalutionBackendArgs,
    ):
        self._session = session
        self._arguments = arguments
        self._front = AsyncSession(session, batch_size=arguments.batch_size)

    @property
    def streams_tokens(self) -> bool:
        """True if text is streamed, so that tokens can be timed."""
        return self._arguments.stream and self._front.streams_text

    def make_body(
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

    def stream(
        self, arguments: GenerationRequestArguments
    ) -> AsyncGenerator[TextDelta | GenerationOutput]:
        """Run a body; closing the iterator cancels it."""
        request = self._make_request(arguments.body or {})
        return self._front.stream(request) if self._arguments.stream else self._answer(request)

    async def probe(self) -> None:
        """Generate one token; raises as a request of this form would."""
        request = GenerationRequest(columns={"text_column": ["Hello"]})
        request.output_metrics.text_tokens = 1
        body = self.make_body(request, None).body or {}
        await self._front.generate(self._make_request(body | {"ignore_eos": False}))

    def _make_request(self, body: Mapping[str, Any]) -> SessionRequest:
        return make_request(body, self._session.capabilities)

    async def _answer(
        self, request: SessionRequest
    ) -> AsyncGenerator[TextDelta | GenerationOutput]:
        """Yield the text in one piece, then the output."""
        output = await self._front.generate(request)
        yield TextDelta(output.text, tuple(output.token_ids or ()))
        yield output

    def close(self) -> None:
        """Cancel the requests in flight and free the model."""
        self._front.close()
        self._session.close()


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

    def response(self) -> GenerationResponse:
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
