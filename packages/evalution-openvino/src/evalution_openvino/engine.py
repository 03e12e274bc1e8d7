"""The engine `OpenVINO`; nothing is loaded before `build`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from evalution_core import BaseEngine, Capability, Model
from evalution_openvino.options import OpenVINOOptions, check_options
from evalution_openvino.runtime import describe_runtime, import_openvino

if TYPE_CHECKING:
    from evalution_transformers.session import TransformersSession

OPENVINO_CAPABILITIES = frozenset(Capability) - {
    Capability.MULTIMODAL,
    Capability.ATTACH,
}


@dataclass(slots=True)
class OpenVINO(OpenVINOOptions, BaseEngine):
    """Run decoder-only models on Intel hardware, exported before or on load.

    `model.path` is a folder of OpenVINO files, a Hugging Face checkpoint (exported to a folder that
    lives as long as the session), a Hub id of either, or `builtin:tiny`; `model.model_kwargs` go to
    `OVModelForCausalLM.from_pretrained`. Weights are never compressed unless they ask for it.

    Tokenizer: that of the checkpoint, as `AutoTokenizer` reads it, or `tokenizer_path`.
    Precision: float32: float32; bfloat16: bfloat16 or float32; float16: float16 or float32.
    Ends: as the checkpoint declares: `generation_config.json`, else `config.json`, and the
        tokenizer.
    Recorded: `dtype`, `kv_cache_dtype`, `tokenizer`, `eos_ids`.
    """

    capabilities: ClassVar[frozenset[Capability]] = OPENVINO_CAPABILITIES

    def describe_runtime(self) -> dict[str, Any]:
        """Return the versions of OpenVINO and its companions, and the devices named here.

        Raises:
            EngineUnavailableError: a library is missing, or the device.
        """
        return describe_runtime(self.device)

    def build(self, model: Model) -> TransformersSession:
        """Load the model, exporting it if need be, and compile it.

        Raises:
            ConfigurationError: nothing loadable is there, or options contradict each other.
            EngineUnavailableError: a library or the device is missing.
        """
        check_options(self)
        import_openvino()
        from evalution_openvino.session import make_session  # noqa: PLC0415 - it imports openvino

        return make_session(self, self.capabilities, model)
