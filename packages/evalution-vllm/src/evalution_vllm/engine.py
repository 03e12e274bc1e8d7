"""The vLLM engine: its capabilities, and what builds a session of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalution_core import BaseEngine, Capability, ConfigurationError, Model, validate_options
from evalution_enginekit.runtime import SERVING_CAPABILITIES
from evalution_vllm.options import VLLMOptions
from evalution_vllm.runtime import describe_version, find_device, import_vllm

if TYPE_CHECKING:
    from evalution_enginekit.serving_session import ServingSession


@dataclass(slots=True)
class VLLM(VLLMOptions, BaseEngine):
    """Causal models on vLLM, inside this process or in processes of its own.

    `model.path` is a folder, a Hub id or `builtin:tiny`; `model.model_kwargs` are further arguments
    like `vllm_kwargs`. An option that the installed version lacks is refused.

    Tokenizer: that of the checkpoint, as `AutoTokenizer` reads it, or `tokenizer_path`.
    Precision: float32: float32; bfloat16: bfloat16; float16: float16.
    Ends: as the checkpoint declares: `generation_config.json`, else `config.json`, and the
        tokenizer.
    Recorded: `dtype`, `kv_cache_dtype`, `quantization`, `tokenizer`, `eos_ids`.
    """

    capabilities = SERVING_CAPABILITIES | {Capability.DISTRIBUTIONS}

    def __post_init__(self) -> None:
        validate_options(self)
        if self.batch_invariant and not self.multiprocessing:
            raise ConfigurationError(
                "batch_invariant=True is a switch of a whole process: leave multiprocessing on, so "
                "that it is set in vLLM's own"
            )

    def describe_runtime(self) -> dict[str, Any]:
        """Return the distribution and version of vLLM, and the device it found.

        Raises:
            EngineUnavailableError: it is missing or out of range, or this is not Linux.
        """
        return {"version": describe_version(), "device": find_device(import_vllm())}

    def build(self, model: Model) -> ServingSession:
        """Load the checkpoint and try what its scoring can rely on.

        Raises:
            ConfigurationError: nothing loadable is there, or options contradict the model, the
                device, each other or the installed version.
            EngineUnavailableError: vLLM is missing or out of range, or memory doesn't suffice.
            EngineRuntimeError: vLLM loads the checkpoint, and can't run it on this device.
        """
        from evalution_vllm.session import open_session  # noqa: PLC0415 - only for a session

        return open_session(self, model, self.capabilities)
