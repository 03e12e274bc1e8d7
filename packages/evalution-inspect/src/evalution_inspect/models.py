"""Models in memory: one session for all of Inspect's models with the same engine and weights."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol, runtime_checkable

from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    EngineRuntimeError,
    LoglikelihoodRequest,
    Model,
)
from evalution_core.encoding import encode_with_leading
from evalution_enginekit.async_session import AsyncSession
from evalution_enginekit.chat import ChatTemplate

_BATCH_SIZE = 8
"""Of a session that prefers none."""


@runtime_checkable
class _Templated(Protocol):
    """A tokenizer that renders chat, as those of the engine kit do."""

    @property
    def chat_template(self) -> ChatTemplate | None: ...


class LoadedModel:
    """A session with its ways in for tasks of an event loop.

    `connections` is the number of requests that keep the session busy, within the engine's own
    limit: two batches, so that a free slot is filled at once. `shows_template` is true if the
    session shows its chat template or that it has none. `users` is the cache's count.

    Args:
        engine: builds the session here, which may take minutes.
        model: what it loads.
        number: distinguishes loaded models of the same names.
    """

    def __init__(self, engine: BaseEngine, model: Model, number: int):
        self.engine = engine
        self.engine_name = type(engine).__name__
        self.model = model
        self.key = f"{self.engine_name}/{model.name}/{number}"
        self.users = 0
        self.session: BaseInferenceSession = engine.build(model)
        self.front = AsyncSession(self.session)
        self.capabilities = self.session.capabilities
        self.max_model_len = self.session.info.max_model_len
        twice = 2 * (self.session.info.preferred_batch_size or _BATCH_SIZE)
        self.connections = max(1, min(twice, engine.requests_limit or twice))
        self.tokenizer = self.session.tokenizer
        self.shows_template = isinstance(self.tokenizer, _Templated)
        self.chat_template = (
            self.tokenizer.chat_template if isinstance(self.tokenizer, _Templated) else None
        )

    def prompt_ids(self, fields: dict[str, Any]) -> list[int] | None:
        """Return ids of a request's prompt as the session encodes it; None if that is unknown.

        Args:
            fields: of the request: `input_ids`, `prompt`, or `messages` with `tools`.

        Raises:
            InvalidRequestError: the chat template refuses the messages.
        """
        if "input_ids" in fields:
            return list(fields["input_ids"])
        text = fields.get("prompt")
        if text is None and self.chat_template is not None:
            text = self.chat_template.render(fields["messages"], tools=fields.get("tools"))
        if text is None or self.tokenizer is None:
            return None
        return encode_with_leading(self.tokenizer, text)

    def spell(self, token_id: int) -> str:
        """The text of one token, special ones included; `token_id:N` without a tokenizer."""
        if self.tokenizer is None:
            return f"token_id:{token_id}"
        return self.tokenizer.decode([token_id], skip_special_tokens=False)

    async def score_prompt(self, token_ids: Sequence[int]) -> list[float]:
        """Return the natural log-probability of each id but the first, given all ids before it.

        Raises:
            EvalutionError: the session refused the request, failed, or was closed.
        """
        if len(token_ids) < 2:
            return []
        output = await self.front.score(
            LoglikelihoodRequest(
                context_input_ids=token_ids[:1], continuation_input_ids=token_ids[1:]
            )
        )
        if output.token_logprobs is None or len(output.token_logprobs) != len(token_ids) - 1:
            raise EngineRuntimeError(
                "prompt_logprobs needs a value for every token of the prompt, and this engine "
                "gives their sum alone"
            )
        return output.token_logprobs

    def close(self) -> None:
        """Free the model; whoever still waits for an answer gets a `SessionClosedError`."""
        self.front.close()
        self.session.close()


@dataclass(slots=True)
class ModelCache:
    """Loaded models, each there once, for as long as somebody uses it."""

    # A garbage collection in the middle of `acquire` may release another model.
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _models: list[LoadedModel] = field(default_factory=list[LoadedModel])
    _numbers: "count[int]" = field(default_factory=count)

    def acquire(self, engine: BaseEngine, model: Model) -> LoadedModel:
        """Return the model, loaded now unless it is; `release` it once.

        Raises:
            EvalutionError: what `engine.build` raises.
        """
        with self._lock:
            for loaded in self._models:
                if (loaded.engine, loaded.model) == (engine, model) and loaded.users:
                    break
            else:
                loaded = LoadedModel(engine, model, next(self._numbers))
                self._models.append(loaded)
            loaded.users += 1
            return loaded

    def release(self, loaded: LoadedModel) -> None:
        """Close the model if nobody else uses it."""
        with self._lock:
            loaded.users -= 1
            if loaded.users:
                return
            self._models = [each for each in self._models if each is not loaded]
        loaded.close()


MODEL_CACHE = ModelCache()
"""The models of this process: Inspect creates one for each role and each configuration."""
