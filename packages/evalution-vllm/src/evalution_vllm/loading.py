"""A checkpoint in vLLM, and its end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from evalution_core import (
    ConfigurationError,
    EngineUnavailableError,
    EvalutionError,
    Model,
)
from evalution_core.redaction import scrub
from evalution_enginekit import Tokenizer
from evalution_enginekit.model_source import checkpoint_identity, model_folder
from evalution_enginekit.runtime import brief, process_environment
from evalution_enginekit.tokenizer_files import HFTokenizer, checkpoint_tokenizer
from evalution_vllm.arguments import PROMPT_PART, arguments, model_arguments
from evalution_vllm.core_apart import CoreApart
from evalution_vllm.core_here import CoreHere
from evalution_vllm.environment import PRIVATE, QUIET
from evalution_vllm.installation import runtime

if TYPE_CHECKING:
    from evalution_vllm.engine import VLLM

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.gguf")


@dataclass(slots=True)
class Loaded:
    """A model that vLLM runs; `max_model_len` is how many tokens it may be fed."""

    vllm: ModuleType
    llm: Any
    tokenizer: Tokenizer
    max_model_len: int
    identified: Mapping[str, Any] | None
    core: CoreHere | CoreApart

    def close(self) -> None:
        """End vLLM's processes, or free what it holds in this one."""
        self.llm = None
        self.core.end()


def load(engine: VLLM, model: Model) -> Loaded:
    """Start vLLM on the model's checkpoint.

    Raises:
        ConfigurationError: nothing loadable is there, or options contradict the model or device.
        EngineUnavailableError: vLLM is missing, or memory doesn't suffice.
    """
    if model.path is None:
        raise ConfigurationError(
            "engine VLLM needs model.path: a folder, a Hub id, or builtin:tiny"
        )
    folder = model_folder(model.path)
    vllm = runtime()
    if engine.batch_invariant and vllm.platforms.current_platform.is_cpu():
        raise ConfigurationError(
            "batch_invariant=True: vLLM's CPU build has no such mode; leave it out, or use a GPU"
        )
    given = arguments(engine, model, str(folder or model.path), vllm)
    # The tokenizer first: if it is missing, no gigabytes are read in vain.
    tokenizer = checkpoint_tokenizer(model, folder)
    with process_environment(_switches(engine, vllm), defaults=QUIET):
        # An engine core in this process has frozen what vLLM reads of the environment.
        vllm.envs.disable_envs_cache()
        config = _attempt(
            model.path,
            lambda: vllm.EngineArgs(**model_arguments(given)).create_model_config(),
        )
        window = _window(engine.max_model_len, config.max_model_len)
        window = fed_window(config, window)
        # One more than is ever fed: the token that a scored request generates.
        given["max_model_len"] = window + 1
        given.setdefault("long_prefill_token_threshold", min(PROMPT_PART, window + 1))
        llm, core = _start(vllm, given, model.path, in_process=not engine.multiprocessing)
    if isinstance(tokenizer, HFTokenizer):
        tokenizer.eos_ids |= _declared_eos(config)
    identified = checkpoint_identity(model, folder, _WEIGHTS, _revision(config))
    return Loaded(vllm, llm, tokenizer, window, identified, core)


def device_name(vllm: ModuleType) -> str:
    """The kind of device that vLLM found."""
    return str(vllm.platforms.current_platform.device_type)


def _start(
    vllm: ModuleType, given: Mapping[str, Any], path: str, *, in_process: bool
) -> tuple[Any, CoreHere | CoreApart]:
    if not in_process:
        llm = _attempt(path, lambda: vllm.LLM(**given))
        return llm, CoreApart(llm.llm_engine)
    core = CoreHere()
    try:
        with core.starting():
            llm = _attempt(path, lambda: vllm.LLM(**given))
    except BaseException:
        core.end()
        raise
    core.engine = llm.llm_engine
    return llm, core


def _switches(engine: VLLM, vllm: ModuleType) -> dict[str, str]:
    switches = {
        **PRIVATE,
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(engine.multiprocessing)),
        # The window is longer than the model's own by the token that is generated and never fed.
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    }
    if engine.batch_invariant:
        switches["VLLM_BATCH_INVARIANT"] = "1"
    eager = engine.enforce_eager and vllm.platforms.current_platform.is_cpu()
    if eager and engine.multiprocessing and "TORCHDYNAMO_DISABLE" not in os.environ:
        # enforce_eager leaves the sampler's compiled function, which needs a compiler and seconds.
        switches["TORCHDYNAMO_DISABLE"] = "1"
    return switches


def _attempt(path: str, start: Any) -> Any:
    """The result of `start`, whose failures are told as what was wrong with the request for it."""
    torch: Any = import_module("torch")
    try:
        return start()
    except EvalutionError:
        raise
    except torch.OutOfMemoryError as error:
        raise EngineUnavailableError(
            f"{path!r} doesn't fit into memory; set max_model_len, kv_cache_memory_bytes, "
            f"tensor_parallel_size or quantization: {scrub(str(error))}"
        ) from error
    except ImportError as error:
        raise EngineUnavailableError(f"loading {path!r} needs more: {scrub(str(error))}") from error
    except Exception as error:
        raise ConfigurationError(
            f"vLLM couldn't load {path!r}: {type(error).__name__}: {brief(error)}"
        ) from error


def _window(asked: int | None, own: int) -> int:
    if asked is None:
        return own
    if not 1 < asked <= own:
        raise ConfigurationError(
            f"max_model_len={asked} must be between 2 and the model's own {own}"
        )
    return asked


def fed_window(config: Any, window: int) -> int:
    """`window`, or one less where one token more makes vLLM take other rotary embeddings.

    A model with two sets of them (`longrope`) has the long one from a certain `max_model_len` on.
    """
    settings: Any = config.hf_text_config
    scaling: Any = getattr(settings, "rope_parameters", None) or {}
    if "longrope" not in (scaling.get("rope_type"), scaling.get("type")):
        return window
    border: Any = getattr(settings, "original_max_position_embeddings", None)
    border = border or scaling.get("original_max_position_embeddings")
    return window - 1 if window == border else window


def _declared_eos(config: Any) -> frozenset[int]:
    """The ids that the model's generation settings say end a generation."""
    settings: Any = config.try_get_generation_config()
    found: Any = settings.get("eos_token_id", getattr(config.hf_config, "eos_token_id", None))
    if found is None:
        return frozenset()
    return frozenset(cast("list[int]", found) if isinstance(found, list) else [int(found)])


def _revision(config: Any) -> str | None:
    found: Any = getattr(config.hf_config, "_commit_hash", None)
    return None if found is None else str(found)
