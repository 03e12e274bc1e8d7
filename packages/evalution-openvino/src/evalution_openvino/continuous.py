"""Continuous batching by openvino-genai's pipeline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy

from evalution_core import EngineRuntimeError
from evalution_core.redaction import scrub
from evalution_enginekit import TokenEvent, TokenFeed, TokenPrompt
from evalution_openvino.upstream import openvino
from evalution_transformers.fixed_batches import FixedBatches

_log = logging.getLogger(__name__)

Events = Sequence[TokenEvent]


class Handle(Protocol):
    def can_read(self) -> bool: ...
    def read(self) -> Mapping[int, Any]: ...
    def get_status(self) -> Any: ...
    def cancel(self) -> None: ...


class Pipeline(Protocol):
    """The part of `openvino_genai.ContinuousBatchingPipeline` that is used."""

    def add_request(self, request_id: int, input_ids: Any, generation_config: Any) -> Handle: ...
    def step(self) -> None: ...
    def has_non_finished_requests(self) -> bool: ...


@dataclass(slots=True)
class _Running:
    prompt: TokenPrompt
    handle: Handle
    generated: list[int]


class GenaiBatching:
    """Greedy prompts by openvino-genai; all others, which it does otherwise, in fixed batches.

    The pipeline has a compiled model of its own, which is made for the first prompt and kept until
    `forget`. A model that it can't take is run in fixed batches, and `describe` says why; with
    `required` it's an EngineRuntimeError.

    Args:
        genai: the module `openvino_genai`.
        folder: the OpenVINO files.
        device: as OpenVINO spells it.
        properties: what the model is compiled with.
        rows: prompts that run at once.
        settings: of the pipeline's scheduler, by upstream's names.
        others: completes what samples, searches with beams, or asks for log-probabilities.
        required: whether the pipeline was asked for by name.
    """

    def __init__(
        self,
        genai: Any,
        folder: Path,
        device: str,
        properties: Mapping[str, Any],
        *,
        rows: int,
        settings: Mapping[str, Any],
        others: FixedBatches,
        required: bool,
    ):
        self._genai = genai
        self._folder = folder
        self._device = device
        self._properties = properties
        self._rows = rows
        self._settings = settings
        self._others = others
        self._required = required
        self._pipeline: Pipeline | None = None
        self._problem: str | None = None
        self._running: dict[int, _Running] = {}
        self._dropped: list[tuple[TokenPrompt, list[int]]] = []
        self._forgets = False

    def run(self, feed: TokenFeed) -> Iterator[Events]:
        """The events of each step, until nothing runs and `feed` has nothing."""
        try:
            while True:
                self._cancel(feed.cancelled())
                prompts = feed.take(self._rows - len(self._running) - len(self._dropped))
                plain = [prompt for prompt in prompts if _is_plain(prompt)]
                if plain and self._started() is None:
                    plain = []
                others = [prompt for prompt in prompts if prompt not in plain]
                for prompt in plain:
                    self._submit(prompt)
                if others:
                    yield from self._complete_others(others, feed)
                if self._dropped and not self._running:
                    self._submit(*self._dropped.pop(0))
                if self._running:
                    yield self._step()
                elif not prompts:
                    return
        finally:
            self._cancel([*self._running, *(prompt.key for prompt, _ in self._dropped)])
            if self._forgets:
                self.forget()

    def forget(self) -> None:
        """Free the pipeline with its model and cache, once nothing runs."""
        self._forgets = bool(self._running or self._dropped)
        if not self._forgets:
            self._pipeline = None

    def paused(self) -> AbstractContextManager[None]:
        """Between two steps it does nothing."""
        return nullcontext()

    def describe(self) -> dict[str, Any]:
        if self._problem is not None:
            return {**self._others.describe(), "fallback": f"openvino-genai: {self._problem}"}
        return {
            "batching": "continuous",
            "generation": "openvino-genai",
            "scheduler": dict(self._settings),
        }

    def _started(self) -> Pipeline | None:
        """The pipeline; None where it can't take the model."""
        if self._pipeline is None and self._problem is None:
            config = self._genai.SchedulerConfig()
            for name, value in self._settings.items():
                setattr(config, name, value)
            try:
                self._pipeline = self._genai.ContinuousBatchingPipeline(
                    str(self._folder), config, self._device, dict(self._properties)
                )
            except RuntimeError as error:
                problem = scrub(str(error)).strip().splitlines()[-1]
                if self._required:
                    raise EngineRuntimeError(
                        f"genai=True: openvino-genai can't take the model: {problem}; leave genai "
                        f"out to generate in fixed batches instead"
                    ) from error
                self._problem = problem
                _log.warning("openvino-genai can't take the model: %s", self._problem)
        return self._pipeline

    def _submit(self, prompt: TokenPrompt, generated: Sequence[int] = ()) -> None:
        assert self._pipeline is not None
        config = self._genai.GenerationConfig()
        config.max_new_tokens = prompt.max_new_tokens - len(generated)
        if prompt.stop_ids:
            # Left unset, the checkpoint's own end would be taken besides those that were asked for.
            config.eos_token_id = min(prompt.stop_ids)
            config.stop_token_ids = set(prompt.stop_ids)
        else:
            config.ignore_eos = True
        token_ids = numpy.array([[*prompt.token_ids, *generated]], numpy.int64)
        handle = self._pipeline.add_request(prompt.key, openvino.Tensor(token_ids), config)
        self._running[prompt.key] = _Running(prompt, handle, list(generated))

    def _complete_others(self, prompts: Sequence[TokenPrompt], feed: TokenFeed) -> Iterator[Events]:
        for events in self._others.complete(prompts, self._noting(feed)):
            yield events
            if self._running:
                yield self._step()

    def _noting(self, feed: TokenFeed) -> Callable[[], Sequence[int]]:
        def cancelled() -> Sequence[int]:
            keys = feed.cancelled()
            self._cancel(keys)
            return keys

        return cancelled

    def _step(self) -> Events:
        assert self._pipeline is not None
        try:
            self._pipeline.step()
        except BaseException:
            self._running.clear()
            self._dropped.clear()
            self._pipeline = None
            raise
        events: list[TokenEvent] = []
        for running in list(self._running.values()):
            events += self._read(running)
        return [*events, *self._drop_ignored()]

    def _read(self, running: _Running) -> Iterator[TokenEvent]:
        while running.handle.can_read():
            for output in running.handle.read().values():
                token_ids = list(output.generated_ids)
                running.generated += token_ids
                ended = output.finish_reason != self._genai.GenerationFinishReason.NONE
                yield TokenEvent(running.prompt.key, token_ids, finish="length" if ended else None)
                if ended:
                    self._running.pop(running.prompt.key, None)

    def _drop_ignored(self) -> Iterator[TokenEvent]:
        """What the pipeline gave up for want of room runs again alone; what was alone fails."""
        ignored = self._genai.GenerationStatus.IGNORED
        was_alone = len(self._running) == 1
        for running in list(self._running.values()):
            if running.handle.get_status() != ignored:
                continue
            prompt = self._running.pop(running.prompt.key).prompt
            if not was_alone:
                self._dropped.append((prompt, running.generated))
                continue
            error = EngineRuntimeError(
                f"the cache of openvino-genai has no room for a prompt of "
                f"{len(prompt.token_ids)} tokens; raise cache_size"
            )
            yield TokenEvent(prompt.key, error=error)

    def _cancel(self, keys: Sequence[int]) -> None:
        self._dropped = [each for each in self._dropped if each[0].key not in keys]
        gone = [running for key in keys if (running := self._running.pop(key, None)) is not None]
        for running in gone:
            running.handle.cancel()
        # The pipeline lets go of what was cancelled in its next step.
        if gone and not self._running and self._pipeline is not None:
            self._pipeline.step()


def _is_plain(prompt: TokenPrompt) -> bool:
    sampled = prompt.do_sample and prompt.temperature > 0
    return not sampled and prompt.num_beams == 1 and prompt.logprobs is None
