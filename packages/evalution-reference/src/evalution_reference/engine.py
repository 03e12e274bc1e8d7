"""The reference engine: Llama-family checkpoints in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy

from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    Model,
    builtin_path,
    speed_only,
    validate_options,
)
from evalution_core.builtins import PREFIX
from evalution_enginekit import load_tokenizer
from evalution_enginekit.model_source import refuse_model_fields, window_of
from evalution_reference.checkpoint import load_checkpoint
from evalution_reference.llama import Llama
from evalution_reference.session import ReferenceSession

REFERENCE_CAPABILITIES = frozenset(Capability) - {
    Capability.BEAMS,
    Capability.TOOLS,
    Capability.MULTIMODAL,
    Capability.ATTACH,
}


@dataclass(slots=True)
class Reference(BaseEngine):
    """Small Llama, Qwen2 and Qwen3 checkpoints on any CPU; in float64 the oracle of all others.

    `model.path` is a folder with `config.json`, safetensors and a tokenizer, or `builtin:tiny`.

    Options:
        dtype: all arithmetic, norms and softmax included, is in this precision.
        max_model_len: tokens the model is fed at most; None: what its configuration says.
        batch_size: sequences that generate side by side.
    """

    dtype: Literal["float32", "float64"] = "float32"
    max_model_len: int | None = None
    batch_size: int = speed_only(default=16)

    capabilities = REFERENCE_CAPABILITIES

    def __post_init__(self) -> None:
        validate_options(self)
        if self.batch_size < 1:
            raise ConfigurationError(
                f"option 'batch_size' of engine {type(self).__name__} must be at least 1, "
                f"got {self.batch_size}"
            )

    def describe_runtime(self) -> dict[str, Any]:
        return {"version": numpy.__version__, "device": "cpu"}

    def build(self, model: Model) -> ReferenceSession:
        """Read the checkpoint.

        Raises:
            ConfigurationError: no such folder, a file that is missing or damaged, a family that
                isn't supported, a field of the model that does nothing here, or a `max_model_len`
                beyond the model's own.
        """
        refuse_model_fields(self, model, _UNUSED)
        folder = _folder(model)
        config, weights = load_checkpoint(folder)
        return ReferenceSession(
            model=model,
            llama=Llama(config, weights, self.dtype),
            tokenizer=load_tokenizer(model, folder),
            folder=folder,
            max_model_len=window_of(self.max_model_len, config.max_position_embeddings),
            batch_size=self.batch_size,
            capabilities=REFERENCE_CAPABILITIES,
        )


_UNUSED = {
    "model_kwargs": "nothing else loads the weights; leave it out",
    "revision": "it loads a local folder as it is; leave it out",
}


def _folder(model: Model) -> Path:
    if model.path is None:
        raise ConfigurationError("engine Reference needs model.path: a folder, or builtin:tiny")
    if model.path.startswith(PREFIX):
        return builtin_path(model.path, "safetensors")
    folder = Path(model.path).expanduser()
    if not folder.is_dir():
        raise ConfigurationError(
            f"model folder {model.path!r} does not exist; engine Reference loads a local folder "
            "with config.json and safetensors, or builtin:tiny"
        )
    return folder
