"""The engine `GPTQModel`; nothing is loaded before `build`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from evalution_core import BaseEngine, Capability, Model
from evalution_gptqmodel.options import GPTQModelOptions
from evalution_gptqmodel.runtime import import_companions, import_gptqmodel
from evalution_transformers.runtime import describe_runtime

if TYPE_CHECKING:
    from evalution_transformers.session import TransformersSession

GPTQMODEL_CAPABILITIES = frozenset(Capability) - {
    Capability.MULTIMODAL,
}


@dataclass(slots=True)
class GPTQModel(GPTQModelOptions, BaseEngine):
    """Run quantised checkpoints (GPTQ, AWQ and the like) by GPTQModel's loader and kernels.

    `model.path` is a folder or a Hub id of a checkpoint that is quantised; `model.model_kwargs` go
    to GPTQModel's loader (`device_map` to spread the model over several devices, `format`).
    Answers come the same way as from the engine `Transformers`: shared prefixes are run once, and
    a row of a batch that is free takes the next prompt at once.

    Tokenizer: that of the checkpoint, as `AutoTokenizer` reads it, or `tokenizer_path`.
    Precision: float32: float32; bfloat16: bfloat16; float16: float16; kernels round further.
    Ends: as the checkpoint declares: `generation_config.json`, else `config.json`, and the
        tokenizer.
    Recorded: `dtype`, `quantized_backend`, `quantization`, `tokenizer`, `eos_ids`.
    """

    capabilities: ClassVar[frozenset[Capability]] = GPTQMODEL_CAPABILITIES

    def describe_runtime(self) -> dict[str, Any]:
        """Return the versions of GPTQModel and its companions, and the device named here.

        Raises:
            EngineUnavailableError: a library or the device is missing.
        """
        version = import_gptqmodel().__version__
        found = describe_runtime(self.device)
        return found | {"version": f"gptqmodel {version}, {found['version']}"}

    def build(self, model: Model) -> TransformersSession:
        """Load the quantised checkpoint.

        Raises:
            ConfigurationError: the checkpoint isn't quantised or can't be loaded, or options
                contradict it or each other.
            EngineUnavailableError: a library, or the device, is missing.
        """
        import_companions()
        from evalution_gptqmodel import load  # noqa: PLC0415 - it imports torch
        from evalution_transformers import paged, session  # noqa: PLC0415 - they import torch

        paged.check_manager_options(self)
        return session.make_session(self, self.capabilities, load.load_model(self, model))

    def attach(self, handles: Mapping[str, Any], model: Model | None = None) -> TransformersSession:
        """Return a session on `handles["model"]` and `handles["tokenizer"]`, the caller's own.

        The model is what GPTQModel's loader returned, or the model of Transformers in it. The
        options `backend`, `dtype`, `device`, `attn_implementation` and `dequantize` must be left at
        their defaults. Of `model`, `chat_template_kwargs` counts.

        Raises:
            ConfigurationError: a handle is missing or of another kind, such an option is set, or
                the model was quantised in memory and not loaded.
        """
        import_companions()
        from evalution_gptqmodel import load  # noqa: PLC0415 - it imports torch
        from evalution_transformers import paged, session  # noqa: PLC0415 - they import torch

        paged.check_manager_options(self)
        attached = load.attach_model(self, handles, model)
        return session.make_session(self, self.capabilities, attached)
