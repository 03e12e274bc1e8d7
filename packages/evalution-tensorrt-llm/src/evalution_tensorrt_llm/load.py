"""A checkpoint in TensorRT-LLM: its configuration, its window, and the start of the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from evalution_core import ConfigurationError, Model
from evalution_core.redaction import redact_text
from evalution_enginekit import import_runtime
from evalution_enginekit.model_source import choose_window, read_commit_hash
from evalution_enginekit.serving_session import (
    LoadingHints,
    ServedModel,
    StartedModel,
    load_serving,
)
from evalution_enginekit.tokenizer import TRANSFORMERS, parse_eos_ids
from evalution_enginekit.tokenizer_classes import read_json
from evalution_tensorrt_llm.arguments import make_arguments
from evalution_tensorrt_llm.options import TensorRTLLMOptions
from evalution_tensorrt_llm.runtime import (
    ScoreSource,
    choose_score_source,
    import_tensorrt_llm,
    installed_version,
    runtime_environment,
)
from evalution_tensorrt_llm.upstream import Engine, MakesEngine

_HINTS = LoadingHints(
    "TensorRT-LLM",
    "max_model_len, max_batch_size, free_gpu_memory_fraction or tensor_parallel_size",
    device="an NVIDIA GPU and its driver; on this machine take the engine Transformers or LlamaCpp",
)
_QUANTIZATION = "hf_quant_config.json"
"""The file in which ModelOpt says how it has quantized a checkpoint."""
_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's own description, read before the runtime is started.

    Args:
        max_positions: the longest sequence; None if the configuration states none.
        vocabulary: how many logits a row has; None if it states none.
        dtype: precision of the weights.
        quantization: the method that weights and cache are quantized with.
        eos_ids: the ids that end a generation.
        revision: the commit on the Hub.
    """

    max_positions: int | None
    vocabulary: int | None
    dtype: str
    quantization: str | None
    eos_ids: frozenset[int] = frozenset()
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Runtime:
    """The module `tensorrt_llm`, and its `LLM` on a model."""

    module: ModuleType
    llm: Engine
    checkpoint: Checkpoint
    source: ScoreSource


def load(options: TensorRTLLMOptions, model: Model, resources: ExitStack) -> ServedModel[Runtime]:
    """Start TensorRT-LLM on the model's checkpoint; `resources` ends it.

    Raises:
        ConfigurationError: nothing loadable is there, or options contradict the model.
        EngineUnavailableError: TensorRT-LLM is missing, or no device is, or memory doesn't suffice.
    """

    def prepare(path: str, folder: Path | None) -> Callable[[], StartedModel[Runtime]]:
        module = import_tensorrt_llm()
        checkpoint = read_checkpoint(model, folder)
        source = choose_score_source(installed_version())
        window = _fit_window(options, checkpoint, source)
        arguments = make_arguments(options, model, path, module, sequence=window + source.spare)

        def start() -> StartedModel[Runtime]:
            make: MakesEngine = module.LLM
            with runtime_environment():
                llm = make(**arguments)
            resources.callback(llm.shutdown)
            runtime = Runtime(module, llm, checkpoint, source)
            return StartedModel(runtime, window, checkpoint.eos_ids, checkpoint.revision)

        return start

    return load_serving(model, engine="TensorRTLLM", hints=_HINTS, prepare=prepare)


def _fit_window(options: TensorRTLLMOptions, checkpoint: Checkpoint, source: ScoreSource) -> int:
    # The runtime cuts a longer sequence down to the model's longest, without an error.
    positions, own = checkpoint.max_positions, None
    if positions is not None:
        own = positions - source.spare
    limit = f"the model's own {positions} less {source.spare} that TensorRT-LLM needs:"
    return choose_window(options.max_model_len, own, limit=limit)


def read_checkpoint(model: Model, folder: Path | None) -> Checkpoint:
    """Return the description of `folder`, or of the model on the Hub.

    Raises:
        ConfigurationError: there is no configuration, or it is broken.
    """
    if folder is not None:
        # The tokenizer reads the ends of generation of a folder.
        if not (file := folder / "config.json").is_file():
            raise ConfigurationError(
                f"no config.json in {folder}: give a folder with config.json and weights"
            )
        found = _parse_config(read_json(file), read_json(folder / _QUANTIZATION))
        return replace(found, eos_ids=frozenset())
    transformers: Any = import_runtime(
        "transformers", TRANSFORMERS, install='pip install "transformers>=4.57"'
    )
    where: dict[str, Any] = {
        "revision": model.revision,
        "trust_remote_code": model.trust_remote_code,
    }
    try:
        config: Any = transformers.AutoConfig.from_pretrained(model.path, **where)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"no configuration could be loaded from {model.path!r}: {redact_text(str(error))}"
        ) from error
    declared: dict[str, Any] = config.to_dict()
    try:
        settings: Any = transformers.GenerationConfig.from_pretrained(model.path, **where)
        declared["eos_token_id"] = settings.eos_token_id
    except OSError:
        # A model without generation settings is complete: its configuration has the end tokens.
        pass
    exported: dict[str, Any] = {}
    with suppress(OSError):
        # Only ModelOpt writes this file.
        exported = read_json(
            Path(transformers.utils.cached_file(model.path, _QUANTIZATION, **where))
        )
    return replace(_parse_config(declared, exported), revision=read_commit_hash(config))


def _parse_config(declared: Mapping[str, Any], exported: Mapping[str, Any]) -> Checkpoint:
    text = cast("Mapping[str, Any]", declared.get("text_config") or declared)
    lengths = [text[name] for name in _LENGTHS if isinstance(text.get(name), int)]
    dtype = text.get("dtype") or text.get("torch_dtype") or declared.get("dtype")
    dtype = dtype or declared.get("torch_dtype") or "bfloat16"
    return Checkpoint(
        lengths[0] if lengths else None,
        text.get("vocab_size"),
        str(dtype).removeprefix("torch."),
        _name_quantization(declared, exported),
        parse_eos_ids(declared.get("eos_token_id")),
    )


def _name_quantization(declared: Mapping[str, Any], exported: Mapping[str, Any]) -> str | None:
    """Return the methods that ModelOpt's file states, which is read first, else config.json."""
    own = cast("Mapping[str, Any]", declared.get("quantization_config") or {})
    stated = cast("Mapping[str, Any]", exported.get("quantization") or {})
    method = stated.get("quant_algo") or (own.get("quant_method", "unknown") if own else None)
    cache = stated.get("kv_cache_quant_algo")
    named = (method, f"cache in {cache}" if cache else None)
    return ", ".join(str(part) for part in named if part) or None
