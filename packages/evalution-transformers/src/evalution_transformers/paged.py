"""Batching that a runtime does itself: the manager of Transformers, over its paged cache."""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any, Generic, TypeVar, cast

import torch
import transformers
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.generation.continuous_batching.requests import RequestStatus
from transformers.generation.continuous_batching.scheduler import (
    SCHEDULER_MAPPING,
    FIFOScheduler,
)

from evalution_core import ConfigurationError, EngineRuntimeError
from evalution_core.redaction import redact_text
from evalution_enginekit import PromptQueue, TokenEvent, TokenPrompt
from evalution_enginekit.runtime import find_changed_options, is_in_range, refuse_unknown
from evalution_transformers.generate import Events, FixedBatches, Generation
from evalution_transformers.options import (
    MANAGER_OPTIONS,
    ContinuousOptions,
    ModelOptions,
    asks_for_manager,
)
from evalution_transformers.probe import read_text_config
from evalution_transformers.runtime import resolve_device
from evalution_transformers.upstream import BatchingModel, CausalModel, Manager, RequestResult

_POLL_S = 0.05
_STOP_S = 10.0
_PAGE = 16
"""Tokens of a page: only whole pages are shared, and upstream's 256 are more than most prompts."""
_FLASH_PAGE = 256
"""The page that the decoding kernels of flash attention take."""
_CPU_CACHE_BYTES = 1 << 30
_SHARE_OF_FREE = 0.5
_IGNORED = {"max_cached_graphs": ">=5.13"}
"""Settings that Transformers still takes, and the versions that don't read them."""


def check_manager_options(options: ModelOptions) -> None:
    """Refuse options of the manager that can't be had here, before anything is loaded.

    Raises:
        ConfigurationError: one is lacking or ignored in the installed version, or needs another
            device or engine, or `paged=False` keeps the manager off.
    """
    if not isinstance(options, ContinuousOptions):
        if asks_for_manager(options):
            raise ConfigurationError(
                f"attn_implementation={options.attn_implementation!r} is for the engine "
                f"Transformers alone, which has upstream's manager; leave out paged|"
            )
        return
    given = find_changed_options(options, MANAGER_OPTIONS)
    names = [*given, *(["cache_tokens"] if options.cache_tokens is not None else [])]
    if options.paged is False and names:
        raise ConfigurationError(
            f"{', '.join(names)}: for upstream's manager alone, and paged=False keeps it off"
        )
    if options.paged is False and asks_for_manager(options):
        raise ConfigurationError(
            f"attn_implementation={options.attn_implementation!r} asks for upstream's manager, and "
            f"paged=False keeps it off; set one of them"
        )
    device = resolve_device(options.device)
    if options.use_async_batching and device.type != "cuda":
        raise ConfigurationError(
            f"use_async_batching=True needs CUDA, and the device is {device}; leave it out"
        )
    upstream = f"transformers {transformers.__version__}"
    refuse_unknown(given, _find_fields(), upstream, "setting of continuous batching")


def asks_for_paged(options: ContinuousOptions) -> bool:
    """Return whether the manager is asked for, by `paged`, by `paged|…` or by its own options."""
    given = options.cache_tokens or find_changed_options(options, MANAGER_OPTIONS)
    return bool(options.paged or given or asks_for_manager(options))


def find_manager_obstacle(model: CausalModel) -> str | None:
    """Return why upstream's manager can't run this model here; None if it can."""
    version = transformers.__version__
    if not hasattr(transformers, "ContinuousBatchingConfig"):
        return f"transformers {version} has no continuous batching that can be configured"
    if not hasattr(model, "init_continuous_batching"):
        return f"{type(model).__name__} has no continuous batching"
    if not hasattr(ContinuousBatchingManager, "pause") or "page_size" not in _find_fields():
        return f"the continuous batching of transformers {version} can't be paused and sized"
    attention = str(getattr(model.config, "_attn_implementation", None))
    if attention != "sdpa" and not attention.startswith("flash"):
        return f"attention {attention!r} would have to be replaced while the manager runs"
    return None


def _find_fields() -> set[str]:
    """Return the settings of continuous batching that the installed version reads."""
    settings: Any = getattr(transformers, "ContinuousBatchingConfig", None)
    if settings is None:
        return set()
    return {
        field.name
        for field in fields(settings)
        if not is_in_range(transformers.__version__, _IGNORED.get(field.name, "<0"))
    }


class CancellingScheduler(FIFOScheduler):
    """Upstream's scheduler, and a cancelled request is over for a batch that is on its way.

    With asynchronous batches (huggingface/transformers#43960) upstream looks up the cache of a
    request that was cancelled after its batch had begun, and ends all requests: so in 5.23.0, and
    no issue says it. This class can go with the first version that doesn't.
    """

    def clear_cancelled_requests(self) -> list[Any]:
        states: list[Any] = super().clear_cancelled_requests()
        for state in states:
            state.status = RequestStatus.FINISHED
        return states


_SCHEDULER = "evalution"
SCHEDULER_MAPPING[_SCHEDULER] = CancellingScheduler

R = TypeVar("R")


class ManagedBatching(Generation, Generic[R]):
    """Completes greedy prompts by a runtime that batches them itself, and others in fixed batches.

    Args:
        rows: prompts that run at once.
        others: completes prompts that sample, search with beams, or ask for log-probabilities.
    """

    def __init__(self, rows: int, others: FixedBatches):
        self._rows = rows
        self._others = others
        self._running: dict[int, R] = {}
        self._forgets = False

    def run(self, feed: PromptQueue) -> Iterator[Events]:
        try:
            while True:
                self._cancel(feed.cancelled())
                prompts = feed.take(self._rows - len(self._running))
                others: list[TokenPrompt] = []
                for prompt in prompts:
                    if is_plain_greedy(prompt) and self._start():
                        self._running[prompt.key] = self._submit(prompt)
                    else:
                        others.append(prompt)
                if others:
                    yield from self._complete_others(others, feed)
                if self._running:
                    yield self._step()
                elif not prompts:
                    return
        finally:
            self._cancel(list(self._running))
            if self._forgets:
                self.forget()

    def forget(self) -> None:
        self._forgets = bool(self._running)
        if not self._running:
            self._stop()

    def _complete_others(
        self, prompts: Sequence[TokenPrompt], feed: PromptQueue
    ) -> Iterator[Events]:
        def read_cancelled() -> Sequence[int]:
            keys = feed.cancelled()
            self._cancel(keys)
            return keys

        steps = self._others.complete(prompts, read_cancelled)
        while True:
            with self.pause():
                events = next(steps, None)
            if events is None:
                return
            yield events
            if self._running:
                yield self._step()

    @abstractmethod
    def _start(self) -> bool:
        """Start the runtime if it doesn't run; return False where it can't take the model."""

    @abstractmethod
    def _stop(self) -> None:
        """End the runtime and free its cache, if it runs; nothing is in it."""

    @abstractmethod
    def _submit(self, prompt: TokenPrompt) -> R:
        """Hand a prompt to the runtime, and return its handle."""

    @abstractmethod
    def _step(self) -> Events:
        """Return the events since the last call; take prompts that ended out of `_running`."""

    @abstractmethod
    def _cancel(self, keys: Sequence[int]) -> None:
        """Drop those of `keys` that run, in the runtime too."""


def is_plain_greedy(prompt: TokenPrompt) -> bool:
    """Return whether a prompt takes the likeliest tokens, without beams and log-probabilities."""
    sampled = prompt.do_sample and prompt.temperature > 0
    return not sampled and prompt.num_beams == 1 and prompt.logprobs is None


class PagedBatching(ManagedBatching[int]):
    """Completes prompts by upstream's manager; the handle of each is its number of known tokens.

    The manager begins with the first prompt, and is kept until `forget`. Its cache gets a bounded
    size: left to itself it takes most of the memory there is.

    Args:
        model: a model for which `find_manager_obstacle` finds none.
        rows: prompts that run at once.
        max_model_len: tokens of the longest sequence.
        pass_tokens: tokens of one step, those of prompts included.
        options: its manager options and `cache_tokens` count; they go before `pass_tokens`.
        others: as in `ManagedBatching`.
    """

    def __init__(
        self,
        model: CausalModel,
        *,
        rows: int,
        max_model_len: int,
        pass_tokens: int,
        options: ContinuousOptions,
        others: FixedBatches,
    ):
        super().__init__(rows, others)
        self._model = model
        flash = str(model.config._attn_implementation).startswith("flash")
        page = _FLASH_PAGE if flash else _PAGE
        held = options.cache_tokens or cache_size(model, rows * max_model_len)
        # One sequence of full length must fit, whatever the bound is.
        pages = -(-max(held, max_model_len + page) // page)
        self._settings: dict[str, Any] = {
            "page_size": page,
            "num_blocks": pages,
            "max_batch_tokens": max(rows, min(pass_tokens, pages * page)),
            "auto_switch_to_flash": False,
            "scheduler_type": _SCHEDULER,
            **find_changed_options(options, MANAGER_OPTIONS),
        }
        self._manager: Manager | None = None

    def describe(self) -> dict[str, Any]:
        settings = {
            name: list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
            for name, value in sorted(self._settings.items())
        }
        return {"batching": "continuous", "generation": "paged attention", "paged": settings}

    def pause(self) -> AbstractContextManager[object]:
        is_running = self._manager is not None and self._manager.is_running()
        return self._manager.pause() if self._manager and is_running else nullcontext()

    def _start(self) -> bool:
        if self._manager is None:
            settings = transformers.GenerationConfig(do_sample=False, eos_token_id=-1)
            manager = cast("BatchingModel", self._model).init_continuous_batching(
                generation_config=settings,
                continuous_batching_config=transformers.ContinuousBatchingConfig(**self._settings),
            )
            manager.start()
            self._manager = manager
        return True

    def _stop(self) -> None:
        if self._manager is not None:
            self._manager.stop(block=True, timeout=_STOP_S, hard_stop=True)
            self._manager.destroy()
            self._manager = None

    def _submit(self, prompt: TokenPrompt) -> int:
        assert self._manager is not None
        self._manager.add_request(
            list(prompt.token_ids),
            request_id=str(prompt.key),
            max_new_tokens=prompt.max_new_tokens,
            streaming=True,
            eos_token_id=sorted(prompt.stop_ids) or -1,
        )
        return 0

    def _step(self) -> Events:
        """Return the events since the last call; wait a moment for the first."""
        manager = self._manager
        assert manager is not None
        events: list[TokenEvent] = []
        result = manager.get_result(timeout=_POLL_S)
        while result is not None:
            key = int(result.request_id)
            if key in self._running:
                events.append(self._read(key, result))
                if result.is_finished():
                    del self._running[key]
            result = manager.get_result(timeout=0)
        if not events and not manager.is_running():
            error = manager.background_thread_status.fatal_error
            manager.destroy()
            self._manager = None
            raise EngineRuntimeError(
                f"continuous batching ended: {redact_text(str(error))}"
            ) from error
        return events

    def _read(self, key: int, result: RequestResult) -> TokenEvent:
        if result.error is not None:
            return TokenEvent(key, error=EngineRuntimeError(redact_text(str(result.error))))
        fresh = list(result.generated_tokens)[self._running[key] :]
        self._running[key] += len(fresh)
        return TokenEvent(key, fresh, finish="length" if result.is_finished() else None)

    def _cancel(self, keys: Sequence[int]) -> None:
        for key in keys:
            if self._running.pop(key, None) is not None and self._manager is not None:
                self._manager.cancel_request(str(key))


def cache_size(model: CausalModel, wanted: int) -> int:
    """Return how many tokens of keys and values to hold: `wanted`, or as many as fit the bound.

    The bound is half of the free memory on CUDA and 1 GiB elsewhere.
    """
    config = read_text_config(model.config)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    each = 2 * config.num_hidden_layers * heads * size * model.dtype.itemsize
    if model.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(model.device)
        return min(wanted, int(free * _SHARE_OF_FREE) // each)
    return min(wanted, _CPU_CACHE_BYTES // each)
