"""GuideLLM's backend of kind `evalution`: requests go to a session in the worker process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from guidellm.backends import Backend

from evalution_core import ConfigurationError, Model
from evalution_core.builtins import builtin_path
from evalution_guidellm.arguments import EvalutionBackendArgs
from evalution_guidellm.session import Answer, History, LiveSession

if TYPE_CHECKING:
    from guidellm.schemas import GenerationRequest, GenerationResponse, RequestInfo


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
        self._live: LiveSession | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_live": None}

    @property
    def processes_limit(self) -> int | None:
        limit = self._arguments.make_engine().processes_limit
        return min(self._arguments.processes, limit or self._arguments.processes)

    @property
    def requests_limit(self) -> int | None:
        return self._arguments.make_engine().requests_limit

    async def default_model(self) -> str:
        """Return the folder or Hub name by which GuideLLM loads a tokenizer by default."""
        model = self._choose_model()
        name = model.tokenizer_path or model.path or ""
        return str(builtin_path(name, "safetensors")) if name.startswith("builtin:") else name

    async def process_startup(self) -> None:
        """Build the session.

        Raises:
            EvalutionError: the engine or the model can't be had; the message says why.
        """
        if self._live is not None:
            raise RuntimeError("the backend runs already; shut it down first")
        engine = self._arguments.make_engine()
        # In this thread, and so in the main one: a runtime may set signal handlers as it starts.
        session = engine.build(self._choose_model())
        self._live = LiveSession(session, self._arguments)

    async def process_shutdown(self) -> None:
        """Close the session; of a backend that doesn't run, nothing."""
        if self._live is not None:
            live, self._live = self._live, None
            live.close()

    async def validate(self) -> None:
        """Have one token generated in the form of the requests to come.

        Raises:
            EvalutionError: the model can't do that; it has no chat template, say.
        """
        await self._get_started().probe()

    async def resolve(  # pyright: ignore[reportIncompatibleMethodOverride] - it is a generator upstream
        self,
        request: GenerationRequest,
        request_info: RequestInfo,
        history: History | None = None,
    ) -> AsyncGenerator[tuple[GenerationResponse | None, RequestInfo]]:
        """Run one request: `None` once its first token is there, then the response.

        A request that is cancelled is given up, and what there is of it is yielded.
        """
        live = self._get_started()
        arguments = live.make_body(request, history)
        answer = Answer(request, arguments, request_info.timings, live.streams_tokens)
        request_info.timings.request_start = time.time()
        try:
            async with aclosing(live.stream(arguments)) as events:
                async for event in events:
                    if answer.take(event, time.time()):
                        yield None, request_info
        except asyncio.CancelledError:
            yield answer.response(), request_info
            raise
        yield answer.response(), request_info

    def _get_started(self) -> LiveSession:
        if self._live is None:
            raise RuntimeError("the backend doesn't run; call process_startup() first")
        return self._live

    def _choose_model(self) -> Model:
        model = self._arguments.make_model()
        if model.path is not None:
            return model
        engine = self._arguments.make_engine()
        path = engine.default_model()
        if path is None:
            raise ConfigurationError(
                f"engine {self._arguments.engine} needs a model; add model=… to --backend"
            )
        return Model(path=path, **self._arguments.model_options)
