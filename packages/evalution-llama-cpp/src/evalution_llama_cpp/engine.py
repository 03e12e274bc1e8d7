"""The llama.cpp engine; nothing is loaded before `build`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalution_core import BaseEngine, Capability, Model
from evalution_enginekit.model_source import refuse_gguf_model_fields
from evalution_llama_cpp.options import LlamaCppOptions
from evalution_llama_cpp.runtime import choose_device, find_gpus, load_library

if TYPE_CHECKING:
    from evalution_llama_cpp.session import LlamaCppSession

CAPABILITIES = frozenset(Capability) - {
    Capability.BEAMS,
    Capability.MULTIMODAL,
    Capability.ATTACH,
}


@dataclass(slots=True)
class LlamaCpp(LlamaCppOptions, BaseEngine):
    """GGUF models on llama.cpp, many sequences in one KV cache.

    `model.path` is a .gguf file, a folder with one, `builtin:tiny`, or `owner/repository:file.gguf`
    on the Hugging Face Hub (extra `[hub]`).

    Tokenizer: llama.cpp's own for the file, or `tokenizer_path`.
    Precision: float32: float32; bfloat16: bfloat16; float16: float16.
    Ends: as file and `tokenizer_path` declare; and, unless
        `ends_by_name` is false, tokens by name.
    Recorded: `dtype`, `weights`, `kv_cache`, `tokenizer`, `eos_ids`, `ends_by_name`.
    """

    capabilities = CAPABILITIES

    def describe_runtime(self) -> dict[str, Any]:
        """Return the version of llama-cpp-python, the GPUs that it sees, and the device.

        Raises:
            EngineUnavailableError: it is missing, or with `strict_device` the device is.
        """
        library = load_library()
        gpus = find_gpus(library)
        device = choose_device(self.device, gpus, strict=self.strict_device)
        return {
            "version": f"llama-cpp-python {library.__version__}",
            "device": device.name,
            "gpus": list(gpus),
        }

    def build(self, model: Model) -> LlamaCppSession:
        """Load the model.

        Raises:
            ConfigurationError: there is no such file, it is damaged, llama.cpp can't load it, or
                the options contradict it.
            EngineUnavailableError: llama-cpp-python is missing, or with `strict_device` the device.
        """
        refuse_gguf_model_fields(
            self, model, "parameters of llama.cpp go into the engine's llama_kwargs"
        )
        library = load_library()
        from evalution_llama_cpp.load import load_model  # noqa: PLC0415 - it imports numpy
        from evalution_llama_cpp.session import LlamaCppSession  # noqa: PLC0415

        excluded = set[Capability]()
        if not self.continuous_batching:
            excluded.add(Capability.CONTINUOUS_BATCHING)
        loaded = load_model(self, model, library)
        try:
            return LlamaCppSession(self, CAPABILITIES - excluded, loaded)
        except BaseException:
            loaded.weights.free()
            raise
