"""Continuous batching by the manager of Transformers, over its paged attention cache."""

# torch leaves part of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
import transformers
from transformers.generation.continuous_batching import ContinuousBatchingManager

from evalution_core import ConfigurationError, EngineRuntimeError
from evalution_core.redaction import redact_text
from evalution_enginekit import PromptQueue, TokenEvent, TokenPrompt
from evalution_enginekit.runtime import find_changed_options, is_in_range
from evalution_transformers.generate import FixedBatches, is_plain_greedy
from evalution_transformers.options import MANAGER_OPTIONS, ContinuousOptions, asks_for_manager
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
_WITHOUT_EFFECT = {"max_cached_graphs": "5.13"}
"""Fields that Transformers still takes, and the version since which it doesn't read them."""


def check_manager_options(options: ContinuousOptions) -> None:
    """Refuse options of the manager that can't be had here, before anything is loaded.

    Raises:
        ConfigurationError: one is lacking or ignored in the installed version, or needs another
            device, or `paged=False` keeps the manager off.
    """
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
    if options.use_async_batching and resolve_device(options.device).type != "cuda":
        raise ConfigurationError(
            f"use_async_batching=True needs CUDA, and the device is "
            f"{resolve_device(options.device)}; leave it out"
        )
    _check_fields(given)


def asks_for_paged(options: ContinuousOptions) -> bool:
    """Return whether the manager is asked for, by `paged`, by `paged|…` or by its own options."""
    given = find_changed_options(options, MANAGER_OPTIONS)
    return bool(options.paged or given or asks_for_manager(options))


def find_manager_obstacle(model: CausalModel) -> str | None:
    """Return why upstream's manager can't run this model here; None if it can."""
    version = transformers.__version__
    if not hasattr(transformers, "ContinuousBatchingConfig"):
        return f"transformers {version} has no continuous batching that can be configured"
    if not hasattr(model, "init_continuous_batching"):
        return f"{type(model).__name__} has no continuous batching"
    if not hasattr(ContinuousBatchingManager, "pause") or "page_size" not in _fields():
        return f"the continuous batching of transformers {version} can't be paused and sized"
    attention = str(getattr(model.config, "_attn_implementation", None))
    if attention != "sdpa" and not attention.startswith("flash"):
        return f"attention {attention!r} would have to be replaced while the manager runs"
    return None


def _check_fields(given: Mapping[str, Any]) -> None:
    version = transformers.__version__
    known = _fields()
    idle = {
        name: since
        for name, since in _WITHOUT_EFFECT.items()
        if name in known and is_in_range(version, f">={since}")
    }
    for name in (name for name in given if name in idle):
        raise ConfigurationError(
            f"{name} has no effect in transformers {version}: upstream takes it and ignores it "
            f"since {idle[name]}; leave it out"
        )
    lacking = [name for name in given if name not in known]
    if lacking:
        possible = [name for name in MANAGER_OPTIONS if name in known - idle.keys()]
        raise ConfigurationError(
            f"transformers {version} has no {', '.join(lacking)} for continuous batching; leave it "
            f"out, or install a version that has it (this one has: {', '.join(possible) or 'none'})"
        )


def _fields() -> set[str]:
    settings: Any = getattr(transformers, "ContinuousBatchingConfig", None)
    return set() if settings is None else {field.name for field in fields(settings)}


@dataclass(slots=True)
class _Request:
    prompt: TokenPrompt
    reported: int = 0
    """Tokens that events have reported already."""


class PagedBatching:
    """Completes greedy prompts by upstream's manager, and in fixed batches those it can't do alike.

    The manager begins with the first prompt, and is kept until `forget`. Its cache gets a bounded
    size: left to itself it takes most of the memory there is.

    Args:
        model: a model for which `find_manager_obstacle` finds none.
        rows: prompts that run at once.
        max_model_len: tokens of the longest sequence.
        pass_tokens: tokens of one step, those of prompts included.
        options: its manager options and `cache_tokens` count; they go before `pass_tokens`.
        others: completes prompts that sample, search with beams, or ask for log-probabilities.
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
        self._model = model
        self._rows = rows
        self._others = others
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
            **find_changed_options(options, MANAGER_OPTIONS),
        }
        self._manager: Manager | None = None
        self._running: dict[str, _Request] = {}
        self._forgets = False

    def run(self, feed: PromptQueue) -> Iterator[Sequence[TokenEvent]]:
        """Yield the events of each step, until nothing runs and `feed` has nothing."""
        running = self._running
        try:
            while True:
                self._cancel(feed.cancelled(), running)
                prompts = feed.take(self._rows - len(running))
                others = [prompt for prompt in prompts if not is_plain_greedy(prompt)]
                self._submit([prompt for prompt in prompts if is_plain_greedy(prompt)], running)
                if others:
                    yield from self._complete_others(others, feed, running)
                if running:
                    yield self._collect(running)
                elif not prompts:
                    return
        finally:
            self._cancel([request.prompt.key for request in running.values()], running)
            if self._forgets:
                self.forget()

    def forget(self) -> None:
        """End the manager and free its cache, once nothing runs."""
        self._forgets = bool(self._running)
        if self._manager is not None and not self._running:
            self._manager.stop(block=True, timeout=_STOP_S, hard_stop=True)
            self._manager.destroy()
            self._manager = None

    def describe(self) -> dict[str, Any]:
        """Return its part of `describe_execution`."""
        return {
            "batching": "continuous",
            "generation": "paged attention",
            "paged": {name: _to_list(value) for name, value in sorted(self._settings.items())},
        }

    @contextmanager
    def pause(self) -> Generator[None]:
        """Return a context in which the manager leaves the model alone."""
        manager = self._manager
        if manager is None or not manager.is_running():
            yield
            return
        with manager.pause():
            yield

    def _submit(self, prompts: Sequence[TokenPrompt], running: dict[str, _Request]) -> None:
        for prompt in prompts:
            name = str(prompt.key)
            running[name] = _Request(prompt)
            self._start().add_request(
                list(prompt.token_ids),
                request_id=name,
                max_new_tokens=prompt.max_new_tokens,
                streaming=True,
                eos_token_id=sorted(prompt.stop_ids) or -1,
            )

    def _start(self) -> Manager:
        """Return the manager, which is started for the first prompt."""
        if self._manager is None:
            settings = transformers.GenerationConfig(do_sample=False, eos_token_id=-1)
            manager = cast("BatchingModel", self._model).init_continuous_batching(
                generation_config=settings,
                continuous_batching_config=transformers.ContinuousBatchingConfig(**self._settings),
            )
            manager.start()
            self._manager = manager
        return self._manager

    def _complete_others(
        self, prompts: Sequence[TokenPrompt], feed: PromptQueue, running: dict[str, _Request]
    ) -> Iterator[Sequence[TokenEvent]]:
        def cancelled() -> list[int]:
            keys = feed.cancelled()
            self._cancel(keys, running)
            return keys

        steps = self._others.complete(prompts, cancelled)
        while True:
            with self.pause():
                events = next(steps, None)
            if events is None:
                return
            yield events

    def _collect(self, running: dict[str, _Request]) -> list[TokenEvent]:
        """Return the events since the last call; wait a moment for the first."""
        manager = self._manager
        assert manager is not None
        events: list[TokenEvent] = []
        result = manager.get_result(timeout=_POLL_S)
        while result is not None:
            request = running.get(result.request_id)
            if request is not None:
                events.append(_to_event(request, result))
                if result.is_finished():
                    del running[result.request_id]
            result = manager.get_result(timeout=0)
        if not events and not manager.is_running():
            error = manager.background_thread_status.fatal_error
            manager.destroy()
            self._manager = None
            raise EngineRuntimeError(
                f"continuous batching ended: {redact_text(str(error))}"
            ) from error
        return events

    def _cancel(self, keys: Sequence[int], running: dict[str, _Request]) -> None:
        for key in keys:
            if running.pop(str(key), None) is not None and self._manager is not None:
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


def _to_event(request: _Request, result: RequestResult) -> TokenEvent:
    key = request.prompt.key
    if result.error is not None:
        return TokenEvent(key, error=EngineRuntimeError(redact_text(str(result.error))))
    tokens = list(result.generated_tokens)
    fresh, request.reported = tokens[request.reported :], len(tokens)
    return TokenEvent(key, fresh, finish="length" if result.is_finished() else None)


def _to_list(value: Any) -> Any:
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
