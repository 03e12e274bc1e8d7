"""The SGLang engine: its capabilities, and what builds a session of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalution_core import BaseEngine, Capability, ConfigurationError, Model, validate_options
from evalution_enginekit.runtime import SERVING_CAPABILITIES
from evalution_sglang.options import SGLangOptions

if TYPE_CHECKING:
    from evalution_enginekit.serving_session import ServingSession


@dataclass(slots=True)
class SGLang(SGLangOptions, BaseEngine):
    """Causal models on SGLang's engine, whose scheduler runs in a process of its own.

    `model.path` is a folder, a Hub id or `builtin:tiny`; `model.model_kwargs` are further arguments
    like `sglang_kwargs`. An option that the installed version lacks is refused. Seeds need
    `enable_deterministic_inference`.

    Tokenizer: that of the checkpoint, as `AutoTokenizer` reads it, or `tokenizer_path`.
    Precision: float32: float32; bfloat16: bfloat16; float16: float16.
    Ends: as the checkpoint declares: `generation_config.json`, else `config.json`, and the
        tokenizer.
    Recorded: `dtype`, `kv_cache_dtype`, `quantization`, `tokenizer`, `eos_ids`.
    """

    capabilities = SERVING_CAPABILITIES | {Capability.DISTRIBUTIONS}

    def __post_init__(self) -> None:
        validate_options(self)
        if self.max_model_len is not None and self.context_length is not None:
            raise ConfigurationError(
                f"max_model_len={self.max_model_len} and context_length={self.context_length} of "
                f"engine SGLang mean the same: give one of them"
            )

    def describe_runtime(self) -> dict[str, Any]:
        """Return the version of SGLang, and the device that torch found.

        Raises:
            EngineUnavailableError: it is missing or out of range, or this is not Linux.
        """
        # Only here: the module imports asyncio and more, which options don't need.
        from evalution_sglang.runtime import (  # noqa: PLC0415
            describe_version,
            find_device,
            import_sglang,
        )

        import_sglang()
        return {"version": describe_version(), "device": self.device or find_device()}

    def build(self, model: Model) -> ServingSession:
        """Start SGLang on the checkpoint.

        Its processes are started by `multiprocessing`: a script keeps its work under
        `if __name__ == "__main__":`.

        Raises:
            ConfigurationError: nothing loadable is there, or options contradict the model, the
                device, each other or the installed version.
            EngineUnavailableError: SGLang is missing or out of range, or memory doesn't suffice.
        """
        from evalution_sglang.session import open_session  # noqa: PLC0415 - only for a session

        return open_session(self, model, self.capabilities)
