"""The TensorRT-LLM engine: its capabilities, and what builds a session of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalution_core import BaseEngine, Capability, Model
from evalution_enginekit.runtime import SERVING_CAPABILITIES
from evalution_tensorrt_llm.options import TensorRTLLMOptions
from evalution_tensorrt_llm.runtime import describe_version, import_tensorrt_llm

if TYPE_CHECKING:
    from evalution_enginekit.serving_session import ServingSession

CAPABILITIES = SERVING_CAPABILITIES - {Capability.SEED}
"""One random generator serves the whole batch."""


@dataclass(slots=True)
class TensorRTLLM(TensorRTLLMOptions, BaseEngine):
    """Causal models on TensorRT-LLM's PyTorch backend, which works in processes of its own.

    Scripts keep their work under `if __name__ == "__main__"`. `model.path` is a folder, a Hub id or
    `builtin:tiny`; `model.model_kwargs` are further arguments like `llm_kwargs`. An option that the
    installed release lacks is refused.

    Tokenizer: that of the checkpoint, as `AutoTokenizer` reads it, or `tokenizer_path`.
    Precision: that of the checkpoint, by TensorRT-LLM's own `auto`.
    Ends: as the checkpoint declares: `generation_config.json`, else `config.json`, and the
        tokenizer.
    Recorded: `dtype`, `kv_cache_dtype`, `quantization`, `tokenizer`, `eos_ids`.
    """

    capabilities = CAPABILITIES

    def describe_runtime(self) -> dict[str, Any]:
        """Return the version of TensorRT-LLM, and the only kind of device it runs on.

        Raises:
            EngineUnavailableError: it is missing or out of range, or this is not Linux.
        """
        import_tensorrt_llm()
        return {"version": describe_version(), "device": "cuda"}

    def build(self, model: Model) -> ServingSession:
        """Load the checkpoint.

        Raises:
            ConfigurationError: nothing loadable is there, or options contradict the model, each
                other or the installed release.
            EngineUnavailableError: TensorRT-LLM is missing or out of range, there is no device, or
                its memory doesn't suffice.
        """
        from evalution_tensorrt_llm.session import open_session  # noqa: PLC0415 - for a session

        return open_session(self, model, self.capabilities)
