"""A checkpoint in vLLM: its window, its start, and what its configuration declares."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from evalution_core import ConfigurationError, Model
from evalution_enginekit.model_source import check_complete, choose_window, read_commit_hash
from evalution_enginekit.runtime import process_environment
from evalution_enginekit.serving_session import (
    LoadingHints,
    ServedModel,
    StartedModel,
    choose_serving_dtype,
    load_serving,
)
from evalution_enginekit.tokenizer import parse_eos_ids
from evalution_vllm.arguments import make_arguments
from evalution_vllm.engine_core import InprocCore, SubprocessCore
from evalution_vllm.options import VLLMOptions
from evalution_vllm.runtime import PRIVATE, QUIET, import_vllm, is_cpu

_HINTS = LoadingHints(
    "vLLM",
    "max_model_len, kv_cache_memory_bytes, gpu_memory_utilization, tensor_parallel_size or "
    "quantization",
    process_errors=(ChildProcessError,),
)
_NO_MEMORY = (
    "KV cache is needed",
    "Cannot auto-fit max_model_len",
    "No available memory",
    "less than desired",
    "less than requested memory",
)
"""Parts of the errors that vLLM 0.32 and 0.33 raise where weights or cache don't fit."""
_PROMPT_PART = 1024
"""Tokens of one prompt in one step. Runners of vLLM's first generation hold logits
`[tokens, vocabulary]` for the part of a prompt whose log-probabilities they compute."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The module `vllm`, and its `LLM` on a model."""

    vllm: ModuleType
    llm: Any


def load(options: VLLMOptions, model: Model, resources: ExitStack) -> ServedModel[Runtime]:
    """Start vLLM on the model's checkpoint; `resources` ends it.

    Raises:
        ConfigurationError: nothing loadable is there, or options contradict the model or device.
        EngineUnavailableError: vLLM is missing, or memory doesn't suffice.
    """

    def prepare(path: str, folder: Path | None) -> Callable[[], StartedModel[Runtime]]:
        vllm = import_vllm()
        if options.batch_invariant and is_cpu(vllm):
            raise ConfigurationError(
                "batch_invariant=True: vLLM's CPU build has no such mode; leave it out, or use a "
                "GPU"
            )
        arguments = make_arguments(options, model, path, vllm)
        return lambda: _start(options, vllm, arguments, folder, resources)

    return load_serving(model, engine="VLLM", hints=_HINTS, prepare=prepare)


def _start(
    options: VLLMOptions,
    vllm: ModuleType,
    arguments: dict[str, Any],
    folder: Path | None,
    resources: ExitStack,
) -> StartedModel[Runtime]:
    with process_environment(_switches(options, vllm), defaults=QUIET):
        # An engine core in this process has frozen what vLLM reads of the environment.
        vllm.envs.disable_envs_cache()
        config = vllm.EngineArgs(**arguments).create_model_config()
        declared: Any = config.hf_config
        # vLLM 0.32 exempts linear layers and embeddings of unquantised models from its own check
        # (`track_weights_loading`) on purpose, and runs them on uninitialised memory.
        check_complete(declared, folder)
        arguments["dtype"] = choose_serving_dtype(options.dtype, declared.to_dict(), folder)
        window = fit_window(config, choose_window(options.max_model_len, config.max_model_len))
        arguments["max_model_len"] = choose_max_model_len(options, config, arguments, window)
        arguments.setdefault("long_prefill_token_threshold", min(_PROMPT_PART, window))
        with start_errors(multiprocessing=options.multiprocessing):
            llm = _start_llm(vllm, arguments, resources, multiprocessing=options.multiprocessing)
        window = min(window, llm.llm_engine.vllm_config.model_config.max_model_len - 1)
    return StartedModel(
        Runtime(vllm, llm), window, _read_declared_eos(config), read_commit_hash(config.hf_config)
    )


def fit_window(config: Any, window: int) -> int:
    """Return `window`, or one less where one token more makes vLLM take other rotary embeddings.

    A model with two sets of them (`longrope`) has the long one from a certain `max_model_len` on.
    """
    settings: Any = config.hf_text_config
    scaling: Any = getattr(settings, "rope_parameters", None) or {}
    if "longrope" not in (scaling.get("rope_type"), scaling.get("type")):
        return window
    border: Any = getattr(settings, "original_max_position_embeddings", None)
    border = border or scaling.get("original_max_position_embeddings")
    return window - 1 if window == border else window


def choose_max_model_len(
    options: VLLMOptions, config: Any, arguments: Mapping[str, Any], window: int
) -> int:
    """Return vLLM's `max_model_len`: one more than is fed, for the token that a score generates.

    It is -1, by which vLLM fits it to the cache, where no window was asked for and a cache of given
    size may lack room for the model's own. That is reckoned as if every layer kept every token.
    """
    room = arguments.get("kv_cache_memory_bytes")
    if options.max_model_len is not None or room is None:
        return window + 1
    values = 2 * config.get_total_num_kv_heads() * config.get_head_size()
    values *= config.get_total_num_hidden_layers()
    size = 4 if arguments["dtype"] == "float32" else 2
    # The last block may be partly filled, and vLLM keeps one; by default they have at most 128.
    tokens = window + 1 + 2 * (arguments.get("block_size") or 128)
    return -1 if values * size * tokens > room else window + 1


@contextmanager
def start_errors(*, multiprocessing: bool) -> Generator[None]:
    """Turn errors that vLLM raises for memory and processes into those that `_HINTS` knows."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if any(sign in str(error) for sign in _NO_MEMORY):
            raise MemoryError(f"out of memory: {error}") from error
        if multiprocessing and isinstance(error, RuntimeError):
            raise ChildProcessError(str(error)) from error
        raise


def _start_llm(
    vllm: ModuleType, arguments: Mapping[str, Any], resources: ExitStack, *, multiprocessing: bool
) -> Any:
    if multiprocessing:
        llm: Any = vllm.LLM(**arguments)
        resources.callback(SubprocessCore(llm.llm_engine).end)
        return llm
    core = InprocCore()
    resources.callback(core.end)
    with core.starting():
        llm = vllm.LLM(**arguments)
    core.engine = llm.llm_engine
    return llm


def _switches(options: VLLMOptions, vllm: ModuleType) -> dict[str, str]:
    """Return the environment variables under which vLLM starts."""
    switches = {
        **PRIVATE,
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(options.multiprocessing)),
        # The window is longer than the model's own by the token that is generated and never fed.
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    }
    if options.batch_invariant:
        switches["VLLM_BATCH_INVARIANT"] = "1"
    eager = options.enforce_eager and is_cpu(vllm)
    if eager and options.multiprocessing and "TORCHDYNAMO_DISABLE" not in os.environ:
        # enforce_eager leaves the sampler's compiled function, which needs a compiler and seconds.
        switches["TORCHDYNAMO_DISABLE"] = "1"
    return switches


def _read_declared_eos(config: Any) -> frozenset[int]:
    """Return the ids that the model's generation settings say end a generation."""
    settings: Any = config.try_get_generation_config()
    return parse_eos_ids(
        settings.get("eos_token_id", getattr(config.hf_config, "eos_token_id", None))
    )
