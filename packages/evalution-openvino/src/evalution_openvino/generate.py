"""Generation: continuous batching by openvino-genai's pipeline."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from evalution_core import ConfigurationError, EngineRuntimeError, EngineUnavailableError, Model
from evalution_core.redaction import redact_text
from evalution_enginekit import TokenEvent, TokenPrompt
from evalution_openvino.options import OpenVINOOptions
from evalution_openvino.runtime import import_genai, load_openvino
from evalution_openvino.upstream import GenaiRuntime, Handle, Pipeline
from evalution_transformers.generate import Events, FixedBatches
from evalution_transformers.paged import ManagedBatching, cache_size
from evalution_transformers.upstream import CausalModel

_log = logging.getLogger(__name__)

PASS_TOKENS = 512
_BLOCK = 32
"""Tokens of a block of openvino-genai's cache on a CPU; elsewhere it is half as many."""
_COMPRESSING = ("load_in_8bit", "quantization_config")


@dataclass(slots=True)
class _Running:
    """A prompt and its tokens; `handle` is None while it waits to be run alone."""

    prompt: TokenPrompt
    handle: Handle | None
    generated: list[int]


def find_genai(options: OpenVINOOptions, model: Model) -> tuple[GenaiRuntime | None, str | None]:
    """Return the package openvino-genai, or None and what keeps it from being used if it could be.

    Raises:
        ConfigurationError: `genai=True`, and it can't take the model.
        EngineUnavailableError: `genai=True`, and it isn't installed.
    """
    if options.genai is False:
        return None, None
    try:
        package = import_genai()
    except EngineUnavailableError as error:
        if options.genai:
            raise
        return None, f"continuous batching: {error}"
    from_files = [name for name in (*_COMPRESSING, "file_name") if name in model.model_kwargs]
    if not from_files:
        return package, None
    obstacle = f"openvino-genai reads openvino_model.xml as it is, not with {', '.join(from_files)}"
    if options.genai:
        raise ConfigurationError(f"genai=True: {obstacle}")
    return None, f"continuous batching: {obstacle}"


def make_scheduler_settings(
    options: OpenVINOOptions, loaded: CausalModel, rows: int, window: int
) -> dict[str, Any]:
    """Return settings of openvino-genai's scheduler, with a bounded cache unless one is asked."""
    settings: dict[str, Any] = {
        "max_num_seqs": rows,
        "max_num_batched_tokens": max(rows, options.max_num_batched_tokens or PASS_TOKENS),
        "enable_prefix_caching": options.enable_prefix_caching is not False,
    }
    if options.cache_size is not None:
        return {**settings, "cache_size": options.cache_size}
    # One sequence of full length must fit, whatever the bound is.
    held = max(cache_size(loaded, rows * window), window + 1)
    return {**settings, "num_kv_blocks": -(-held // _BLOCK) + rows}


class GenaiBatching(ManagedBatching[_Running]):
    """Completes prompts by openvino-genai.

    The pipeline has a compiled model of its own, which is made for the first prompt and kept until
    `forget`. A model that it can't take is run in fixed batches, and `describe` says why; with
    `required` it's an EngineRuntimeError.

    Args:
        genai: the package `openvino_genai`.
        folder: the OpenVINO files.
        device: as OpenVINO spells it.
        properties: the properties to compile the model with.
        rows: prompts that run at once.
        settings: of the pipeline's scheduler, by its own names.
        others: as in `ManagedBatching`.
        required: whether the pipeline was asked for by `genai=True`.
    """

    def __init__(
        self,
        genai: GenaiRuntime,
        folder: Path,
        device: str,
        properties: Mapping[str, Any],
        *,
        rows: int,
        settings: Mapping[str, Any],
        others: FixedBatches,
        required: bool,
    ):
        super().__init__(rows, others)
        self._genai = genai
        self._folder = folder
        self._device = device
        self._properties = properties
        self._settings = settings
        self._required = required
        self._pipeline: Pipeline | None = None
        self._problem: str | None = None

    def describe(self) -> dict[str, Any]:
        if self._problem is not None:
            return {**self._others.describe(), "fallback": f"openvino-genai: {self._problem}"}
        return {
            "batching": "continuous",
            "generation": "openvino-genai",
            "scheduler": dict(self._settings),
        }

    def _start(self) -> bool:
        if self._pipeline is None and self._problem is None:
            config = self._genai.SchedulerConfig()
            for name, value in self._settings.items():
                setattr(config, name, value)
            try:
                self._pipeline = self._genai.ContinuousBatchingPipeline(
                    str(self._folder), config, self._device, dict(self._properties)
                )
            except RuntimeError as error:
                problem = redact_text(str(error)).strip().splitlines()[-1]
                if self._required:
                    raise EngineRuntimeError(
                        f"genai=True: openvino-genai can't take the model: {problem}; leave genai "
                        f"out to generate in fixed batches instead"
                    ) from error
                self._problem = problem
                _log.warning("openvino-genai can't take the model: %s", self._problem)
        return self._pipeline is not None

    def _stop(self) -> None:
        self._pipeline = None

    def _submit(self, prompt: TokenPrompt) -> _Running:
        return _Running(prompt, self._add_request(prompt, []), [])

    def _add_request(self, prompt: TokenPrompt, generated: Sequence[int]) -> Handle:
        assert self._pipeline is not None
        config = self._genai.GenerationConfig()
        config.max_new_tokens = prompt.max_new_tokens - len(generated)
        if prompt.stop_ids:
            # Left unset, the checkpoint's own end would be taken too.
            config.eos_token_id = min(prompt.stop_ids)
            config.stop_token_ids = set(prompt.stop_ids)
        else:
            config.ignore_eos = True
        token_ids = numpy.array([[*prompt.token_ids, *generated]], numpy.int64)
        return self._pipeline.add_request(prompt.key, load_openvino().Tensor(token_ids), config)

    def _step(self) -> Events:
        assert self._pipeline is not None
        if all(running.handle is None for running in self._running.values()):
            alone = next(iter(self._running.values()))
            alone.handle = self._add_request(alone.prompt, alone.generated)
        try:
            self._pipeline.step()
        except BaseException:
            self._running.clear()
            self._pipeline = None
            raise
        active = [running for running in self._running.values() if running.handle is not None]
        events = [event for running in active for event in self._read(running)]
        return [*events, *self._drop_ignored(active)]

    def _read(self, running: _Running) -> Iterator[TokenEvent]:
        while running.handle is not None and running.handle.can_read():
            for output in running.handle.read().values():
                token_ids = list(output.generated_ids)
                running.generated += token_ids
                ended = output.finish_reason != self._genai.GenerationFinishReason.NONE
                yield TokenEvent(running.prompt.key, token_ids, finish="length" if ended else None)
                if ended:
                    self._running.pop(running.prompt.key, None)

    def _drop_ignored(self, active: Sequence[_Running]) -> Iterator[TokenEvent]:
        """Let prompts for which the pipeline has no room wait; fail one that was alone."""
        for running in active:
            handle, prompt = running.handle, running.prompt
            if handle is None or handle.get_status() != self._genai.GenerationStatus.IGNORED:
                continue
            running.handle = None
            if len(active) == 1:
                del self._running[prompt.key]
                error = EngineRuntimeError(
                    f"the cache of openvino-genai has no room for a prompt of "
                    f"{len(prompt.token_ids)} tokens; raise cache_size"
                )
                yield TokenEvent(prompt.key, error=error)

    def _cancel(self, keys: Sequence[int]) -> None:
        gone = [running for key in keys if (running := self._running.pop(key, None)) is not None]
        for running in gone:
            if running.handle is not None:
                running.handle.cancel()
        # The pipeline frees cancelled requests in its next step.
        if gone and not self._running and self._pipeline is not None:
            self._pipeline.step()
