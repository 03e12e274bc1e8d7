"""What runs between a backend's start and its stop: a session, and the asynchronous front of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from guidellm.backends import OpenAIRequestHandlerFactory
from guidellm.schemas import GenerationRequest, GenerationRequestArguments, GenerationResponse

from evalution_core import BaseInferenceSession, Capability, GenerationOutput, TextDelta
from evalution_enginekit.async_session import AsyncSession
from evalution_guidellm.arguments import EvalutionBackendArgs
from evalution_guidellm.prompts import session_request

History = list[tuple[GenerationRequest, GenerationResponse | None]]


class LiveSession:
    """A session that GuideLLM's requests join, and that is closed with this.

    Args:
        session: freshly built.
        capabilities: what the engine declares, for a session that tells nothing of its own.
        arguments: the form of requests.
    """

    def __init__(
        self,
        session: BaseInferenceSession,
        capabilities: frozenset[Capability],
        arguments: EvalutionBackendArgs,
    ):
        self._session = session
        self._capabilities = session.capabilities or capabilities
        self._arguments = arguments
        self._front = AsyncSession(session, batch_size=arguments.batch_size)

    @property
    def tells_tokens(self) -> bool:
        """Whether text comes as it grows, so that tokens can be timed."""
        return self._arguments.stream and self._front.streams_text

    def body_of(
        self, request: GenerationRequest, history: History | None
    ) -> GenerationRequestArguments:
        """The body that GuideLLM would send to a server for the same request."""
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
        """Run a body; closing the iterator gives it up."""
        return self._front.stream(session_request(arguments.body or {}, self._capabilities))

    async def probe(self) -> None:
        """Have one token generated; raises what a request of this form would raise."""
        request = GenerationRequest(columns={"text_column": ["Hello"]})
        request.output_metrics.text_tokens = 1
        body = self.body_of(request, None).body or {}
        await self._front.generate(
            session_request(body | {"ignore_eos": False}, self._capabilities)
        )

    def close(self) -> None:
        """Give up what runs, and free the model."""
        self._front.close()
        self._session.close()
