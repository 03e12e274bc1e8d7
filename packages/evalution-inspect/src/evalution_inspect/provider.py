"""The model provider `evalution/…` of Inspect, and its errors."""

from __future__ import annotations

import asyncio
import logging
import weakref
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import httpx

# Inspect exports it nowhere else; its own command prints it without a traceback.
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.model import (
    ChatMessage,
    GenerateConfig,
    ModelAPI,
    ModelCall,
    ModelOutput,
    RetryDecision,
)
from rich.text import Text

from evalution_core import (
    Capability,
    ConfigurationError,
    ContextLengthError,
    EngineRuntimeError,
    EvalutionError,
    GenerationOutput,
    GenerationRequest,
)
from evalution_core.redaction import redact
from evalution_inspect.arguments import Arguments, parse_arguments
from evalution_inspect.models import MODEL_CACHE, LoadedModel
from evalution_inspect.outputs import OutputWriter
from evalution_inspect.requests import PromptRequests, RequestWriter, check_supported

if TYPE_CHECKING:
    from inspect_ai.tool import ToolChoice, ToolInfo


class ModelSetupError(PrerequisiteError, EvalutionError):
    """The engine or its model is unavailable; nothing ran. The cause is Evalution's own error."""

    def __init__(self, message: str) -> None:
        # As it is: brackets in a plain string would be markup.
        super().__init__(Text(message))
        self.args = (message,)


_log = logging.getLogger(__name__)

_ADAPTIVE_MOST = 100
"""The default upper limit of adaptive connections in Inspect 0.3.285."""
_LOST_CONNECTION = (ConnectionError, TimeoutError, httpx.TransportError)


class EvalutionAPI(ModelAPI):
    """A model of any engine. The session is built here, so that what is wrong shows before a task.

    Models with the same engine, options and weights share one session in a process, and so one
    pool of connections. It is closed with the last of them, at the latest when Python ends.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        **model_args: Any,
    ):
        super().__init__(model_name, base_url, api_key, config=config or GenerateConfig())
        try:
            check_supported(config or GenerateConfig())
            arguments = parse_arguments(model_name, model_args, base_url=base_url, api_key=api_key)
            self._loaded = MODEL_CACHE.acquire(arguments.engine, arguments.model)
            self._release = weakref.finalize(self, MODEL_CACHE.release, self._loaded)
            try:
                _check_use(self._loaded, arguments)
            except ConfigurationError:
                self._release()
                raise
        except EvalutionError as error:
            raise ModelSetupError(f"evalution: {error}") from error
        chat = arguments.use_chat_template
        self._requests = RequestWriter(self._loaded, chat, arguments.tool_format)
        self._outputs = OutputWriter(self._loaded, model_name, is_chat=chat)
        self._has_warned = False

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput | tuple[ModelOutput, ModelCall]:
        """Answer a conversation; a cancelled task gives up its requests.

        Raises:
            EvalutionError: what is asked for can't be done, before anything ran; or the engine
                failed. A prompt that is too long is no error, but an output that says so.
        """
        _check_event_loop()
        self._warn_of_few_connections(config)
        try:
            asked = await asyncio.to_thread(self._requests.write, input, tools, tool_choice, config)
            answers, scores = await self._collect_answers(asked, config)
        except ContextLengthError as error:
            return self._outputs.make_too_long(str(error))
        call = ModelCall.create(
            {"requests": [_show(request) for request in asked.requests]},
            {"outputs": [_show(answer) for answer in answers]},
        )
        return self._outputs.make_output(asked, answers, scores), call

    async def tokenize(self, text: str) -> list[int]:
        """Return ids of the text alone; raises `NotImplementedError` if the engine has none."""
        tokenizer = self._loaded.tokenizer
        return await super().tokenize(text) if tokenizer is None else tokenizer.encode(text)

    async def count_text_tokens(self, text: str) -> int:
        """Exact where the session has a tokenizer, else Inspect's estimate."""
        tokenizer = self._loaded.tokenizer
        if tokenizer is None:
            return await super().count_text_tokens(text)
        return len(tokenizer.encode(text))

    def max_connections(self) -> int:
        """Two batches of the session, within the engine's own limit."""
        return self._loaded.connections

    def connection_key(self) -> str:
        """The session: models that share it share what it can run."""
        return self._loaded.key

    def should_retry(self, ex: Exception) -> RetryDecision:
        """A connection that was lost is tried again; engines retry anything else that passes."""
        lost = isinstance(ex, EngineRuntimeError) and isinstance(ex.__cause__, _LOST_CONNECTION)
        return RetryDecision.transient() if lost else RetryDecision.no()

    def close(self) -> None:
        """Free the session unless another model uses it; idempotent."""
        self._release()

    async def _collect_answers(
        self, asked: PromptRequests, config: GenerateConfig
    ) -> tuple[list[GenerationOutput], list[float] | None]:
        """Return an output for each request, and the prompt's values if they are asked for.

        The first that fails cancels the others.
        """
        loaded = self._loaded
        scores: asyncio.Task[list[float]] | None = None
        try:
            async with asyncio.TaskGroup() as group:
                if config.prompt_logprobs:
                    scores = group.create_task(loaded.score_prompt(asked.token_ids or ()))
                outputs = [group.create_task(loaded.front.generate(r)) for r in asked.requests]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors.exceptions[0].__cause__
        return [task.result() for task in outputs], scores and scores.result()

    def _warn_of_few_connections(self, config: GenerateConfig) -> None:
        adaptive = config.adaptive_connections in (None, True) and config.max_connections is None
        connections = self._loaded.connections
        if adaptive and connections > _ADAPTIVE_MOST and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "Inspect's adaptive connections end at %d, and engine %s runs more at once: "
                "--max-connections %d keeps it busy",
                _ADAPTIVE_MOST,
                self._loaded.engine_name,
                connections,
            )


def _check_use(loaded: LoadedModel, arguments: Arguments) -> None:
    """Raise `ConfigurationError` where the model can't answer at all in the way that is asked."""
    engine, name = loaded.engine_name, loaded.model.name
    if Capability.GENERATE not in loaded.capabilities:
        raise ConfigurationError(f"engine {engine} doesn't generate text, and Inspect needs that")
    if not arguments.use_chat_template:
        return
    plain = "-M use_chat_template=false completes a single user message as plain text"
    if Capability.CHAT not in loaded.capabilities:
        raise ConfigurationError(f"engine {engine} takes no chat messages with {name}; {plain}")
    if loaded.shows_template and loaded.chat_template is None:
        raise ConfigurationError(f"the model {name} has no chat template; {plain}")


def _check_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(
            "the provider evalution runs on asyncio alone; set INSPECT_ASYNC_BACKEND=asyncio"
        ) from None


def _show(value: GenerationRequest | GenerationOutput) -> dict[str, Any]:
    """Return the fields that differ from their defaults, JSON-safe."""
    default = type(value)("", "") if isinstance(value, GenerationOutput) else type(value)()
    return {
        field.name: redact(getattr(value, field.name))
        for field in fields(value)
        if getattr(value, field.name) != getattr(default, field.name)
    }
