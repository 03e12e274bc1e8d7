"""A checkpoint in TensorRT-LLM, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from evalution_core import ConfigurationError, EngineUnavailableError, EvalutionError, Model
from evalution_core.redaction import scrub
from evalution_enginekit import Tokenizer
from evalution_enginekit.model_source import checkpoint_identity, model_folder
from evalution_enginekit.runtime import brief
from evalution_enginekit.tokenizer_files import checkpoint_tokenizer
from evalution_tensorrt_llm.arguments import arguments
from evalution_tensorrt_llm.checkpoint import Checkpoint, checkpoint
from evalution_tensorrt_llm.environment import starting
from evalution_tensorrt_llm.installation import installed_version, runtime
from evalution_tensorrt_llm.releases import Reading, reading
from evalution_tensorrt_llm.upstream import Engine, MakesEngine

if TYPE_CHECKING:
    from evalution_tensorrt_llm.engine import TensorRTLLM

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt")
_NO_DEVICE = ("no cuda gpu", "nvidia driver", "no cuda-capable device")


@dataclass(slots=True)
class Loaded:
    """A model that TensorRT-LLM runs; `max_model_len` is how many tokens it may be fed."""

    module: ModuleType
    llm: Engine
    tokenizer: Tokenizer
    checkpoint: Checkpoint
    reading: Reading
    max_model_len: int
    identified: Mapping[str, Any] | None

    def close(self) -> None:
        """End the runtime's processes and free its device memory."""
        self.llm.shutdown()


def load(engine: TensorRTLLM, model: Model) -> Loaded:
    """Start TensorRT-LLM on the model's checkpoint.

    Raises:
        ConfigurationError: nothing loadable is there, or options contradict the model.
        EngineUnavailableError: TensorRT-LLM is missing, or no device is, or memory doesn't suffice.
    """
    if model.path is None:
        raise ConfigurationError(
            "engine TensorRTLLM needs model.path: a folder, a Hub id, or builtin:tiny"
        )
    folder = model_folder(model.path)
    module = runtime()
    told = checkpoint(model, folder)
    how = reading(installed_version())
    window = _window(engine.max_model_len, told.max_positions, how)
    path = str(folder or model.path)
    given = arguments(engine, model, path, module, sequence=window + how.spare)
    # The tokenizer first: if it is missing, no gigabytes are read in vain.
    tokenizer = checkpoint_tokenizer(model, folder, told.eos_ids)
    with starting():
        llm = _started(module.LLM, given, model.path)
    identified = checkpoint_identity(model, folder, _WEIGHTS, told.revision)
    return Loaded(module, llm, tokenizer, told, how, window, identified)


def _started(make: MakesEngine, given: dict[str, Any], path: str) -> Engine:
    """The running engine; a failure is told as what was wrong with the request for it."""
    try:
        return make(**given)
    except EvalutionError:
        raise
    except ImportError as error:
        raise EngineUnavailableError(f"loading {path!r} needs more: {scrub(str(error))}") from error
    except Exception as error:
        text = str(error).lower()
        # A worker's error comes from another process, and only its text is left of it.
        if "out of memory" in text:
            raise EngineUnavailableError(
                f"{path!r} doesn't fit into memory; set max_model_len, max_batch_size, "
                f"free_gpu_memory_fraction or tensor_parallel_size: {brief(error)}"
            ) from error
        if any(sign in text for sign in _NO_DEVICE):
            raise EngineUnavailableError(
                f"TensorRT-LLM needs an NVIDIA GPU and its driver; on this machine take the engine "
                f"Transformers or LlamaCpp: {brief(error)}"
            ) from error
        raise ConfigurationError(
            f"TensorRT-LLM couldn't load {path!r}: {type(error).__name__}: {brief(error)}"
        ) from error


def _window(asked: int | None, positions: int | None, how: Reading) -> int:
    """How many tokens may be fed: the runtime cuts a longer sequence down to what the model has."""
    if positions is None:
        if asked is None:
            raise ConfigurationError(
                "the model's configuration doesn't say how long its sequences may be; set "
                "max_model_len"
            )
        return asked
    own = positions - how.spare
    if asked is None:
        return own
    if not 1 < asked <= own:
        raise ConfigurationError(
            f"max_model_len={asked} must be between 2 and {own}: the model's own {positions}, less "
            f"what TensorRT-LLM needs to tell scores"
        )
    return asked
