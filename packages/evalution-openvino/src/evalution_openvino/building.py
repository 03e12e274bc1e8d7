"""From an engine's options and a model to a session; imported once a session is asked for."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import Any, cast

from evalution_core import Capability, ConfigurationError, EngineUnavailableError, Model
from evalution_core.redaction import scrub
from evalution_enginekit import import_runtime
from evalution_openvino.continuous import GenaiBatching
from evalution_openvino.devices import compile_properties, execution_of, resolve_device
from evalution_openvino.engine import GENAI, INSTALL_GENAI, OpenVINO
from evalution_openvino.loading import Exported, load
from evalution_openvino.prefix_walk import Fitness, PrefixWalk
from evalution_openvino.row_logits import ask_for_last_rows, choose_rows
from evalution_openvino.stateful import StatefulRequest, tell_out_of_memory
from evalution_openvino.trial import Trial
from evalution_openvino.upstream import Compiled, Graph, openvino
from evalution_transformers.architecture import (
    rotates_by_length,
    text_config,
    unshared,
    window_of,
)
from evalution_transformers.fixed_batches import FixedBatches
from evalution_transformers.paged import cache_size
from evalution_transformers.session import Generation, TransformersSession

_log = logging.getLogger(__name__)

_BATCH_SIZE = 16
_PASS_TOKENS = 512
_STATE_TOKENS = 1 << 16
_BLOCK = 32
"""Tokens of a block of openvino-genai's cache on a CPU; elsewhere it is half as many."""
_COMPRESSING = ("load_in_8bit", "quantization_config")


@dataclass(frozen=True, slots=True)
class Examined:
    """A model that runs, and what was found out about it; `why_not`: it can't share prefixes."""

    exported: Exported
    request: StatefulRequest
    fitness: Fitness
    pads_left: bool
    described: dict[str, Any]
    dtype: str | None


def build(engine: OpenVINO, model: Model) -> TransformersSession:
    """A session on the model; errors as `OpenVINO.build` has them."""
    device = resolve_device(engine.device)
    _refuse_second_precision(engine)
    genai, obstacle = _genai(engine, model)
    properties = compile_properties(device, engine.dtype, engine.ov_config, engine.cache_dir)
    exported = load(model, device, properties)
    loaded = exported.model
    window = window_of(loaded, engine.max_model_len)
    compiled = _compiled(exported, device, window)
    rows = engine.batch_size if isinstance(engine.batch_size, int) else _BATCH_SIZE
    batches = FixedBatches(loaded, rows if compiled.pads_left else 1, MemoryError)
    generation: Generation = batches
    capabilities = engine.capabilities
    if genai is None:
        capabilities -= {Capability.CONTINUOUS_BATCHING}
    else:
        settings = _scheduler(engine, loaded, rows, window)
        generation = GenaiBatching(
            genai,
            exported.folder,
            device,
            properties,
            rows=rows,
            settings=settings,
            others=batches,
            required=engine.genai is True,
        )
    return TransformersSession(
        engine=type(engine).__name__,
        capabilities=capabilities,
        model=loaded,
        tokenizer=exported.tokenizer,
        max_model_len=window,
        batch_size=rows,
        scorer=PrefixWalk(
            compiled.request,
            compiled.fitness,
            pass_tokens=engine.pass_tokens or _PASS_TOKENS,
            state_tokens=cache_size(loaded, _STATE_TOKENS),
        ),
        generation=generation,
        described={"fallback": obstacle, **compiled.described},
        identified=exported.identified,
        dtype=compiled.dtype or "unknown",
    )


def _genai(engine: OpenVINO, model: Model) -> tuple[Any, str | None]:
    """The module, or None with what keeps it from being used where it was to be."""
    if engine.genai is False:
        return None, None
    from_files = [name for name in (*_COMPRESSING, "file_name") if name in model.model_kwargs]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = import_runtime(
                "openvino_genai",
                GENAI,
                distributions=("openvino-genai",),
                install=INSTALL_GENAI,
            )
    except EngineUnavailableError as error:
        if engine.genai:
            raise
        return None, f"continuous batching: {error}"
    if not from_files:
        return module, None
    obstacle = f"openvino-genai reads openvino_model.xml as it is, not with {', '.join(from_files)}"
    if engine.genai:
        raise ConfigurationError(f"genai=True: {obstacle}")
    return None, f"continuous batching: {obstacle}"


def _compiled(exported: Exported, device: str, window: int) -> Examined:
    loaded = exported.model
    _refuse_without_state(loaded.model)
    tell_out_of_memory(loaded)
    picks_rows = choose_rows(loaded.model)
    if picks_rows:
        ask_for_last_rows(loaded)
    try:
        loaded.compile()
    except RuntimeError as error:
        raise ConfigurationError(
            f"OpenVINO {openvino.__version__} can't compile the model for {device}: "
            f"{_last_line(error)}"
        ) from error
    compiled = cast(Compiled, loaded.request.get_compiled_model())
    execution = execution_of(compiled)
    request = StatefulRequest(compiled, picks_rows=picks_rows)
    config = text_config(loaded.config)
    trial = Trial(request, int(config.vocab_size), execution.dtype)
    fitness = trial.fitness()
    why_not = unshared(config, window)
    if why_not is None and not fitness.shares:
        why_not = "its logits differ when prefixes are shared"
    if why_not is not None:
        fitness = Fitness(
            shares=False, cuts=False, pads=fitness.pads and not rotates_by_length(config)
        )
    described = {
        "device": execution.device,
        "dtype": execution.dtype,
        "kv_cache_dtype": execution.kv_cache,
        "exported": "on load" if exported.on_load else "before",
        "scoring": "shared prefixes" if fitness.shares else "padded rows",
        "scoring_fallback": why_not,
        "logits": "chosen rows" if picks_rows else "all rows",
    }
    pads_left = trial.pads_left() and not rotates_by_length(config)
    return Examined(exported, request, fitness, pads_left, described, execution.dtype)


def _refuse_without_state(model: Graph) -> None:
    names = {name for port in model.inputs for name in port.get_names()}
    unknown = sorted(names - {"input_ids", "attention_mask", "position_ids", "beam_idx"})
    if unknown or not model.get_variables():
        raise ConfigurationError(
            f"the OpenVINO files hold no stateful causal model (inputs: {', '.join(sorted(names))})"
            f"; export it again with optimum-cli export openvino --task text-generation-with-past"
        )


def _scheduler(engine: OpenVINO, loaded: Any, rows: int, window: int) -> dict[str, Any]:
    """Settings of openvino-genai's scheduler; the cache has a size of ours unless one is given."""
    settings: dict[str, Any] = {
        "max_num_seqs": rows,
        "max_num_batched_tokens": max(rows, engine.max_num_batched_tokens or _PASS_TOKENS),
        "enable_prefix_caching": engine.enable_prefix_caching is not False,
    }
    if engine.cache_size is not None:
        return {**settings, "cache_size": engine.cache_size}
    # One sequence of full length must fit, whatever the bound says.
    held = max(cache_size(loaded, rows * window), window + 1)
    return {**settings, "num_kv_blocks": -(-held // _BLOCK) + rows}


def _refuse_second_precision(engine: OpenVINO) -> None:
    if engine.dtype != "auto" and "INFERENCE_PRECISION_HINT" in engine.ov_config:
        raise ConfigurationError(
            f"dtype={engine.dtype!r} and ov_config INFERENCE_PRECISION_HINT both say the precision;"
            f" set one of them"
        )


def _last_line(error: RuntimeError) -> str:
    """What is wrong, below the list of OpenVINO's own source files."""
    lines = [line.strip() for line in scrub(str(error)).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
