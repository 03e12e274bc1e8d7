"""The engines `Transformers` and `TransformersCompat`; nothing is loaded before `build`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from evalution_core import BaseEngine, Capability, Model
from evalution_transformers.options import TransformersCompatOptions, TransformersOptions
from evalution_transformers.runtime import describe_runtime, import_transformers

if TYPE_CHECKING:
    from evalution_transformers.load import CheckpointOptions
    from evalution_transformers.session import TransformersSession

COMPAT_CAPABILITIES = frozenset(Capability) - {
    Capability.MULTIMODAL,
    Capability.CONTINUOUS_BATCHING,
}


class _Engine(BaseEngine):
    __slots__ = ()

    def describe_runtime(self) -> dict[str, Any]:
        """Return the versions of Transformers and torch, and the device that `device` names here.

        Raises:
            EngineUnavailableError: a library or the device is missing.
        """
        return describe_runtime(cast("CheckpointOptions", self).device)

    def build(self, model: Model) -> TransformersSession:
        """Load the checkpoint.

        Raises:
            ConfigurationError: nothing loadable is there, or options contradict the model, the
                device or the installed version of Transformers.
            EngineUnavailableError: a library or the device is missing.
        """
        import_transformers()
        from evalution_transformers import load, paged, session  # noqa: PLC0415 - they import torch

        options = cast("CheckpointOptions", self)
        paged.check_manager_options(options)
        loaded = load.load_model(options, model)
        return session.make_session(options, self.capabilities, loaded)

    def attach(self, handles: Mapping[str, Any], model: Model | None = None) -> TransformersSession:
        """Return a session on `handles["model"]` and `handles["tokenizer"]`, the caller's own.

        The model is in its caller's mode again after each step, and upstream's manager is never
        started on it. The options of loading, from `dtype` to `adapter`, must be left at their
        defaults. Of `model`, `chat_template_kwargs` counts.

        Raises:
            ConfigurationError: a handle is missing or of another kind, or such an option is set.
        """
        import_transformers()
        from evalution_transformers import (  # noqa: PLC0415 - they import torch
            attached_model,
            paged,
            session,
        )

        options = cast("CheckpointOptions", self)
        paged.check_manager_options(options)
        loading = attached_model.LOADING_OPTIONS
        found, tokenizer = attached_model.read_handles(options, handles, loading)
        borrowed = attached_model.borrow_model(found, tokenizer, model)
        return session.make_session(options, self.capabilities, borrowed)


@dataclass(slots=True)
class TransformersCompat(TransformersCompatOptions, _Engine):
    """Run any causal model of Transformers, in fixed batches by its own `generate`.

    `model.path` is a folder, a Hub id or `builtin:tiny`; `model.model_kwargs` go to
    `from_pretrained` as they are (`device_map`, `quantization_config`, `gguf_file`).

    Tokenizer: that of the checkpoint, as `AutoTokenizer` reads it, or `tokenizer_path`.
    Precision: float32: float32; bfloat16: bfloat16; float16: float16.
    Ends: as the checkpoint declares: `generation_config.json`, else `config.json`, and the
        tokenizer.
    Recorded: `dtype`, `quantization`, `tokenizer`, `eos_ids`.
    """

    capabilities: ClassVar[frozenset[Capability]] = COMPAT_CAPABILITIES


@dataclass(slots=True)
class Transformers(TransformersOptions, _Engine):
    """Run causal models of Transformers with continuous batching and shared prefixes.

    A row that is free takes the next prompt at once, on the model's own forward pass or, on CUDA
    with flash attention, by the continuous-batching manager of Transformers. A model that allows
    neither runs as in `TransformersCompat`, and `describe_execution` says why. `model` is the same
    as there.

    Tokenizer: that of the checkpoint, as `AutoTokenizer` reads it, or `tokenizer_path`.
    Precision: float32: float32; bfloat16: bfloat16; float16: float16.
    Ends: as the checkpoint declares: `generation_config.json`, else `config.json`, and the
        tokenizer.
    Recorded: `dtype`, `quantization`, `tokenizer`, `eos_ids`.
    """

    capabilities: ClassVar[frozenset[Capability]] = COMPAT_CAPABILITIES | {
        Capability.CONTINUOUS_BATCHING
    }
