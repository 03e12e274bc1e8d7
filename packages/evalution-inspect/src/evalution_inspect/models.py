"""Log-probabilities of prompts, for `prompt_logprobs`."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, Protocol, runtime_checkable

from evalution_core import (
    GUIDE_CAPABILITIES,
    BaseEngine,
    BaseInferenceSession,
    Capability,
    EngineRuntimeError,
    HasMaxModelLen,
    HasPreferredBatchSize,
    HasTokenizer,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    Model,
    RequestFailure,
    SessionClosedError,
    SpecialTokens,
    TextCodec,
)
from evalution_enginekit.async_session import AsyncSession
from evalution_enginekit.chat import ChatTemplate

_WINDOW = 64
"""Prompts scored in one call of the session."""

_Waiting = tuple[LoglikelihoodRequest, Future[LoglikelihoodOutput]]


class PromptScorer:
    """Scores the prompts of all tasks; those that wait are scored in one call of the session."""

    def __init__(self, session: BaseInferenceSession):
        self._session = session
        # A garbage collection under it may close this object.
        self._lock = threading.RLock()
        self._waiting: deque[_Waiting] = deque()
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prompt scoring")

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Natural log-probability of each id but the first, given all ids before it.

        Raises:
            EvalutionError: the session refused the request, failed, or was closed.
        """
        if len(token_ids) < 2:
            return []
        request = LoglikelihoodRequest(
            context_input_ids=token_ids[:1], continuation_input_ids=token_ids[1:]
        )
        answer = Future[LoglikelihoodOutput]()
        with self._lock:
            if self._is_closed:
                raise SessionClosedError("the model is closed; make a new one")
            self._waiting.append((request, answer))
            self._thread.submit(self._score_waiting)
        output = await asyncio.wrap_future(answer)
        if output.token_logprobs is None or len(output.token_logprobs) != len(token_ids) - 1:
            raise EngineRuntimeError(
                "prompt_logprobs needs a value for every token of the prompt, and this engine "
                "gives their sum alone"
            )
        return output.token_logprobs

    def close(self) -> None:
        """Whoever waits, or comes later, gets a `SessionClosedError`."""
        with self._lock:
            self._is_closed = True
            left = self._taken(len(self._waiting))
        self._thread.shutdown(wait=False, cancel_futures=True)
        for _, answer in left:
            answer.set_exception(SessionClosedError("the model was closed meanwhile"))

    def _score_waiting(self) -> None:
        """One call for what waits; of the calls submitted meanwhile the next takes what came."""
        with self._lock:
            window = self._taken(_WINDOW)
        if not window:
            return
        left = dict(enumerate(answer for _, answer in window))
        error: BaseException = EngineRuntimeError("the session gave no score for a prompt")
        try:
            requests = enumerate([request for request, _ in window])
            for index, output in self._session.loglikelihood_continuous(requests):
                if isinstance(output, RequestFailure):
                    left.pop(index).set_exception(output.error)
                else:
                    left.pop(index).set_result(output)
        except BaseException as failure:  # noqa: BLE001 - those who wait raise it
            error = failure
        for answer in left.values():
            answer.set_exception(error)

    def _taken(self, most: int) -> list[_Waiting]:
        """The next of those that wait; whoever asked may be gone."""
        taken: list[_Waiting] = []
        while self._waiting and len(taken) < most:
            one = self._waiting.popleft()
            if one[1].set_running_or_notify_cancel():
                taken.append(one)
        return taken


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
        number: distinguishes loaded models of the same names.
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
    def shows_template(self) -> bool:
        """True if the session shows its chat template or that it has none."""
        return isinstance(self.tokenizer, _Templated)

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self.tokenizer.chat_template if isinstance(self.tokenizer, _Templated) else None

    @cached_property
    def connections(self) -> int:
        """Number of requests that keep the session busy, within the engine's own limit.

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
class _CachedModel:
    loaded: LoadedModel
    users: int = 1


@dataclass(slots=True)
class ModelCache:
    """Loaded models, each there once, for as long as somebody uses it."""

    # A garbage collection in the middle of `take` may give another model back.
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _held: list[_CachedModel] = field(default_factory=list[_CachedModel])
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
            self._held.append(_CachedModel(loaded))
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


MODEL_CACHE = ModelCache()
"""The models of this process: Inspect creates one for each role and each configuration."""
