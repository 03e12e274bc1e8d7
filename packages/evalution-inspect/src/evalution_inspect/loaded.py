"""Models in memory: one session for all of Inspect's models that ask for the same."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, Protocol, runtime_checkable

from evalution_core import (
    GUIDE_CAPABILITIES,
    BaseEngine,
    BaseInferenceSession,
    Capability,
    HasMaxModelLen,
    HasPreferredBatchSize,
    HasTokenizer,
    Model,
    SpecialTokens,
    TextCodec,
)
from evalution_enginekit.async_session import AsyncSession
from evalution_enginekit.chat import ChatTemplate
from evalution_inspect.prompt_scoring import PromptScorer

_BATCH_SIZE = 8
"""Of a session that prefers none."""


@runtime_checkable
class _Templated(Protocol):
    """A tokenizer that renders chat, as those of the engine kit do."""

    @property
    def chat_template(self) -> ChatTemplate | None: ...


class LoadedModel:
    """A session with its ways in for tasks of an event loop.

    Args:
        engine: builds the session here, which may take minutes.
        model: what it loads.
        number: tells two loaded models apart that have the same names.
    """

    def __init__(self, engine: BaseEngine, model: Model, number: int):
        self.engine = engine
        self.model = model
        self.key = f"{self.engine_name}/{model.name}/{number}"
        self.session: BaseInferenceSession = engine.build(model)
        self.capabilities = (
            self.session.capabilities or type(engine).capabilities or GUIDE_CAPABILITIES
        )
        self.generation = AsyncSession(self.session)
        self.prompts = PromptScorer(self.session)

    @property
    def engine_name(self) -> str:
        return type(self.engine).__name__

    def can(self, capability: Capability) -> bool:
        return capability in self.capabilities

    @cached_property
    def max_model_len(self) -> int | None:
        return self.session.max_model_len if isinstance(self.session, HasMaxModelLen) else None

    @cached_property
    def tokenizer(self) -> TextCodec | None:
        return self.session.tokenizer if isinstance(self.session, HasTokenizer) else None

    @property
    def tells_template(self) -> bool:
        """Whether it is known if there is a chat template."""
        return isinstance(self.tokenizer, _Templated)

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self.tokenizer.chat_template if isinstance(self.tokenizer, _Templated) else None

    @cached_property
    def connections(self) -> int:
        """How many requests keep the session busy, within the engine's own limit.

        Two batches, so that a free slot is filled at once.
        """
        preferred = _BATCH_SIZE
        if isinstance(self.session, HasPreferredBatchSize):
            preferred = self.session.preferred_batch_size
        return max(1, min(2 * preferred, self.engine.requests_limit or 2 * preferred))

    def prompt_ids(self, fields: dict[str, Any]) -> list[int] | None:
        """Ids of a request's prompt, as the session encodes it; None where that can't be known.

        Args:
            fields: of the request: `input_ids`, `prompt`, or `messages` with `tools`.

        Raises:
            InvalidRequestError: the chat template refuses the messages.
        """
        if "input_ids" in fields:
            return list(fields["input_ids"])
        tokenizer = self.tokenizer
        if not isinstance(tokenizer, SpecialTokens):
            return None
        text = fields.get("prompt")
        if text is None:
            if self.chat_template is None:
                return None
            text = self.chat_template.render(fields["messages"], tools=fields.get("tools"))
        token_ids, leading = tokenizer.encode(text), list(tokenizer.leading_ids)
        return token_ids if token_ids[: len(leading)] == leading else leading + token_ids

    def spelling(self, token_id: int) -> str:
        """The text of one token, special ones included; `token_id:N` without a tokenizer."""
        if self.tokenizer is None:
            return f"token_id:{token_id}"
        return self.tokenizer.decode([token_id], skip_special_tokens=False)

    def close(self) -> None:
        """Free the model; whoever still waits for an answer gets a `SessionClosedError`."""
        self.prompts.close()
        self.generation.close()
        self.session.close()


@dataclass(slots=True)
class _Held:
    loaded: LoadedModel
    users: int = 1


@dataclass(slots=True)
class ModelShelf:
    """Loaded models, each there once, for as long as somebody uses it."""

    # A garbage collection in the middle of `take` may give another model back.
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _held: list[_Held] = field(default_factory=list[_Held])
    _numbers: "count[int]" = field(default_factory=count)

    def take(self, engine: BaseEngine, model: Model) -> LoadedModel:
        """The model, loaded now unless it is; `give_back` it once.

        Raises:
            EvalutionError: what `engine.build` raises.
        """
        with self._lock:
            for held in tuple(self._held):
                if (held.loaded.engine, held.loaded.model) == (engine, model) and held.users:
                    held.users += 1
                    return held.loaded
            loaded = LoadedModel(engine, model, next(self._numbers))
            self._held.append(_Held(loaded))
            return loaded

    def give_back(self, loaded: LoadedModel) -> None:
        """Close the model if nobody else uses it."""
        with self._lock:
            (held,) = (held for held in self._held if held.loaded is loaded)
            held.users -= 1
            if held.users:
                return
            self._held.remove(held)
        loaded.close()


SHELF = ModelShelf()
"""Of this process: Inspect makes a model anew for each role and each configuration."""
