"""The reference engine: Llama-family checkpoints in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy

from evalution_core import BaseEngine, Capability, Model
from evalution_enginekit import load_tokenizer
from evalution_enginekit.model_source import refuse_model_fields
from evalution_reference.llama import Llama
from evalution_reference.load import find_folder, load_checkpoint
from evalution_reference.options import ReferenceOptions
from evalution_reference.session import ReferenceSession

CAPABILITIES = frozenset(Capability) - {
    Capability.BEAMS,
    Capability.MULTIMODAL,
    Capability.ATTACH,
}

_UNUSED = {
    "model_kwargs": "nothing else loads the weights; leave it out",
    "revision": "it loads a local folder as it is; leave it out",
}


@dataclass(slots=True)
class Reference(ReferenceOptions, BaseEngine):
    """Small Llama, Qwen2 and Qwen3 checkpoints on any CPU; in float64 the oracle of all others.

    `model.path` is a folder with `config.json`, safetensors and a tokenizer, or `builtin:tiny`.

    Tokenizer: that of the checkpoint, as `AutoTokenizer` reads it, or `tokenizer_path`.
    Precision: float32: float32; bfloat16: float32; float16: float32; float64: float64.
    Ends: as the checkpoint declares: `generation_config.json`, else `config.json`, and the
        tokenizer.
    Recorded: `dtype`, `tokenizer`, `eos_ids`.
    """

    capabilities = CAPABILITIES

    def describe_runtime(self) -> dict[str, Any]:
        """Return the version of NumPy; the device is always the CPU."""
        return {"version": f"numpy {numpy.__version__}", "device": "cpu"}

    def build(self, model: Model) -> ReferenceSession:
        """Read the checkpoint.

        Raises:
            ConfigurationError: there is no such folder, a file is missing or damaged, the family
                isn't supported, a field of the model does nothing here, or `max_model_len` is
                beyond the model's own.
        """
        refuse_model_fields(self, model, _UNUSED)
        folder = find_folder(model)
        config, weights = load_checkpoint(folder)
        llama = Llama(config, weights, self.dtype)
        tokenizer = load_tokenizer(model, folder)
        return ReferenceSession(self, CAPABILITIES, model, folder, llama, tokenizer)
