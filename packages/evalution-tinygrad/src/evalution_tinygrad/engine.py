"""The tinygrad engine; nothing is loaded before `build`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalution_core import (
    BaseEngine,
    Capability,
    Model,
)
from evalution_enginekit.model_source import refuse_gguf_model_fields
from evalution_tinygrad.options import TinygradOptions
from evalution_tinygrad.runtime import import_tinygrad

if TYPE_CHECKING:
    from evalution_tinygrad.session import TinygradSession

CAPABILITIES = frozenset(Capability) - {
    Capability.BEAMS,
    Capability.MULTIMODAL,
    Capability.ATTACH,
}


@dataclass(slots=True)
class Tinygrad(TinygradOptions, BaseEngine):
    """GGUF models through tinygrad's own model code, on any accelerator it drives and on CPUs.

    `model.path` is a `.gguf` file, a folder with one, `owner/repository:file.gguf` on the Hub, or
    `builtin:tiny`. Chat is rendered by the file's template, or by `model.tokenizer_path`.

    Tokenizer: that of the file, as the engine kit reads it, or `tokenizer_path`.
    Precision: float32: float32; bfloat16: float32; float16: float32.
    Ends: as file and `tokenizer_path` declare; and, unless
        `ends_by_name` is false, tokens by name.
    Recorded: `dtype`, `weight_type`, `quantization`, `tokenizer`, `eos_ids`, `ends_by_name`.
    """

    capabilities = CAPABILITIES

    def describe_runtime(self) -> dict[str, Any]:
        """Return the version of tinygrad, and the device and renderer that `device` means here.

        Raises:
            EngineUnavailableError: tinygrad, the device or a compiler for it is missing.
        """
        version = import_tinygrad()
        from evalution_tinygrad.device import open_device  # noqa: PLC0415 - it imports tinygrad

        placement = open_device(self.device, self.jit, self.jitbeam)
        return {
            "version": f"tinygrad {version}",
            "device": placement.target,
            "jit": placement.jit,
            "jitbeam": placement.beam,
        }

    def build(self, model: Model) -> TinygradSession:
        """Read the file and put the weights on the device.

        Raises:
            ConfigurationError: there is no such GGUF file, it is damaged, or tinygrad doesn't run
                its kind of model.
            EngineUnavailableError: tinygrad, the device or a compiler for it is missing.
        """
        refuse_gguf_model_fields(self, model, "tinygrad has none; leave it out")
        version = import_tinygrad()
        from evalution_tinygrad.device import open_device  # noqa: PLC0415 - it imports tinygrad
        from evalution_tinygrad.load import load_model  # noqa: PLC0415
        from evalution_tinygrad.session import TinygradSession  # noqa: PLC0415

        placement = open_device(self.device, self.jit, self.jitbeam)
        loaded = load_model(self, model, placement)
        return TinygradSession(self, CAPABILITIES, model, loaded, placement, version)
