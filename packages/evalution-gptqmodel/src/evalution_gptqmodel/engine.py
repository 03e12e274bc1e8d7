"""The engine of GPTQModel, as configuration; nothing is loaded before `build`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from evalution_core import BaseEngine, Capability, ConfigurationError, Model, speed_only
from evalution_enginekit import import_runtime
from evalution_gptqmodel.upstream import INSTALL, TORCH, TRANSFORMERS, import_gptqmodel

if TYPE_CHECKING:
    from evalution_transformers.building import Options, PagedWishes
    from evalution_transformers.session import TransformersSession

GPTQMODEL_CAPABILITIES = frozenset(Capability) - {Capability.TOOLS, Capability.MULTIMODAL}


@dataclass(slots=True)
class GPTQModel(BaseEngine):
    """Quantised checkpoints (GPTQ, AWQ and the like) by GPTQModel's loader and kernels.

    `model.path` is a folder or a Hub id of a checkpoint that is quantised; `model.model_kwargs` go
    to GPTQModel's loader (`device_map` to spread the model over several devices, `format`).
    Answers come the same way as from the engine `Transformers`: what prompts share is run once, and
    a row of a batch is refilled as soon as it is free.

    Options:
        backend: the kernels, by GPTQModel's name of them (`gptq_marlin`, `awq_gemm`, …); `auto`:
            the fastest that suits checkpoint, device and dtype.
        dtype: precision of what isn't quantised; `auto`: GPTQModel's choice, on a CPU bfloat16.
            Kernels may round to less on the way.
        device: `cpu`, `cuda`, `cuda:1`, …; None or `auto`: an accelerator if there is one.
        attn_implementation: Transformers' name of it; None or `auto`: upstream's choice.
        max_model_len: tokens the model is fed at most; None: what its configuration says.
        batch_size: prompts completed side by side; None or `auto`: by the device.
        pass_tokens: tokens of one scoring pass; None: by the device.
        paged: Transformers' continuous-batching manager: True wherever it runs, False nowhere,
            None where it pays.
        dequantize: turn the quantised weights back into floats of `dtype` (`auto`: float32) when
            they are loaded: the exact scores of these weights, at the memory of a model that isn't
            quantised. Checkpoints in GPTQ's own format only, and no `backend`.
        cache_tokens: tokens that the manager's cache holds; None: by rows and memory.
        manual_eviction, allow_block_sharing, max_batch_tokens, max_blocks_per_request,
        use_async_batching, use_cuda_graph, q_padding_interval_size, kv_padding_interval_size,
        max_cached_graphs: the manager's own; None: its default. Setting one that the installed
            version lacks is an error, and so is setting one with `paged=False`.
    """

    backend: str = "auto"
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    device: str | None = None
    attn_implementation: str | None = None
    max_model_len: int | None = None
    batch_size: int | Literal["auto"] | None = speed_only(default=None)
    pass_tokens: int | None = speed_only(default=None)
    paged: bool | None = None
    dequantize: bool = False
    cache_tokens: int | None = speed_only(default=None)
    manual_eviction: bool | None = speed_only(default=None)
    allow_block_sharing: bool | None = speed_only(default=None)
    max_batch_tokens: int | None = speed_only(default=None)
    max_blocks_per_request: int | None = speed_only(default=None)
    use_async_batching: bool | None = speed_only(default=None)
    use_cuda_graph: bool | tuple[bool, bool] | None = speed_only(default=None)
    q_padding_interval_size: int | None = speed_only(default=None)
    kv_padding_interval_size: int | None = speed_only(default=None)
    max_cached_graphs: int | None = speed_only(default=None)

    capabilities = GPTQMODEL_CAPABILITIES

    def describe_runtime(self) -> dict[str, Any]:
        """Versions of GPTQModel, Transformers and torch, and the device that `device` names here.

        Raises:
            EngineUnavailableError: a library or the device is missing.
        """
        version = import_gptqmodel().__version__
        from evalution_transformers.loading import described_runtime  # noqa: PLC0415 - it imports torch

        found = described_runtime(self.device)
        return found | {"version": f"gptqmodel {version}, {found['version']}"}

    def build(self, model: Model) -> TransformersSession:
        """Load the quantised checkpoint.

        Raises:
            ConfigurationError: what is there isn't quantised or can't be loaded, or options
                contradict the checkpoint or each other.
            EngineUnavailableError: a library, or the device, is missing.
        """
        options, wishes = _options(self), _wishes(self)
        from evalution_gptqmodel import building  # noqa: PLC0415 - it imports torch
        from evalution_transformers.building import continuous_session  # noqa: PLC0415 - as well

        load = building.loaded_as_floats if self.dequantize else building.loaded
        return continuous_session(options, load(options, model, self.backend), wishes)

    def attach(self, handles: Mapping[str, Any], model: Model | None = None) -> TransformersSession:
        """A session on `handles["model"]` and `handles["tokenizer"]`, which stay the caller's.

        The model is what GPTQModel's loader gave, or the model of Transformers in it. The options
        `backend`, `dtype`, `device`, `attn_implementation` and `dequantize` must be left at their
        defaults. Of `model`, `chat_template_kwargs` counts.

        Raises:
            ConfigurationError: a handle is missing or of another kind, such an option is set, or
                the model was quantised in memory and not loaded.
        """
        options, wishes = _options(self), _wishes(self)
        _refuse_loading_options(self)
        from evalution_gptqmodel.building import borrowed  # noqa: PLC0415 - it imports torch
        from evalution_transformers.building import continuous_session  # noqa: PLC0415 - as well

        return continuous_session(options, borrowed(options, handles, model), wishes)


def _options(engine: GPTQModel) -> Options:
    for name in ("batch_size", "pass_tokens", "cache_tokens", "max_batch_tokens"):
        value = getattr(engine, name)
        if isinstance(value, int) and value < 1:
            raise ConfigurationError(f"{name}={value} must be at least 1")
    import_runtime("torch", TORCH, install=INSTALL)
    import_runtime("transformers", TRANSFORMERS, install=INSTALL)
    from evalution_transformers.building import Options  # noqa: PLC0415 - it imports torch
    from evalution_transformers.loading import Placement  # noqa: PLC0415 - it imports torch

    return Options(
        type(engine).__name__,
        GPTQMODEL_CAPABILITIES,
        Placement(engine.device, engine.dtype, engine.attn_implementation, None),
        engine.max_model_len,
        None if engine.batch_size == "auto" else engine.batch_size,
        engine.pass_tokens,
    )


def _wishes(engine: GPTQModel) -> PagedWishes:
    from evalution_transformers.building import KNOBS, paged_wishes  # noqa: PLC0415 - it imports torch

    knobs = {name: getattr(engine, name) for name in KNOBS}
    return paged_wishes(engine.paged, knobs, engine.cache_tokens)


def _refuse_loading_options(engine: GPTQModel) -> None:
    default = type(engine)()
    names = ("backend", "dtype", "device", "attn_implementation", "dequantize")
    given = [name for name in names if getattr(engine, name) != getattr(default, name)]
    if given:
        raise ConfigurationError(
            f"{', '.join(given)} can't be set for a model that is loaded already: attach takes it "
            f"as it is"
        )
