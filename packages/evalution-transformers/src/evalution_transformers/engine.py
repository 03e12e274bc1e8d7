"""The engines of Hugging Face Transformers, as configuration; nothing is loaded before `build`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from evalution_core import BaseEngine, Capability, ConfigurationError, Model, speed_only
from evalution_enginekit import import_runtime

if TYPE_CHECKING:
    from evalution_transformers.building import Options, PagedWishes
    from evalution_transformers.session import TransformersSession

TORCH = ">=2.6"
TRANSFORMERS = ">=4.57,<6"

DType = Literal["auto", "float64", "float32", "float16", "bfloat16"]

COMPAT_CAPABILITIES = frozenset(Capability) - {
    Capability.TOOLS,
    Capability.MULTIMODAL,
    Capability.CONTINUOUS_BATCHING,
}


@dataclass(slots=True)
class TransformersCompat(BaseEngine):
    """Any causal model of Transformers, in fixed batches through its own `generate`.

    `model.path` is a folder, a Hub id or `builtin:tiny`; `model.model_kwargs` go to
    `from_pretrained` as they are (`device_map`, `quantization_config`, `gguf_file`).

    Options:
        dtype: precision of weights and arithmetic; `auto`: as the checkpoint was saved.
        device: `cpu`, `cuda`, `cuda:1`, …; None or `auto`: an accelerator if there is one.
        attn_implementation: upstream's name of it; None or `auto`: upstream's choice.
        max_model_len: tokens the model is fed at most; None: what its configuration says.
        adapter: folder or Hub id of a LoRA adapter for the model; needs peft.
        batch_size: prompts completed side by side; None or `auto`: by the device.
        pass_tokens: tokens of one scoring pass; None: by the device.
    """

    dtype: DType = "auto"
    device: str | None = None
    attn_implementation: str | None = None
    max_model_len: int | None = None
    adapter: str | None = None
    batch_size: int | Literal["auto"] | None = speed_only(default=None)
    pass_tokens: int | None = speed_only(default=None)

    capabilities = COMPAT_CAPABILITIES

    def describe_runtime(self) -> dict[str, Any]:
        """Versions of Transformers and torch, and the device that `device` names here.

        Raises:
            EngineUnavailableError: a library or the device is missing.
        """
        _runtime()
        from evalution_transformers.loading import described_runtime  # noqa: PLC0415 - it imports torch

        return described_runtime(self.device)

    def build(self, model: Model) -> TransformersSession:
        """Load the checkpoint.

        Raises:
            ConfigurationError: nothing loadable is there, or options contradict the model.
            EngineUnavailableError: a library or the device is missing.
        """
        building = _runtime()
        options = _options(self)
        runnable = building.loaded(options, model)
        return building.session_of(options, runnable, building.fixed_batches(runnable))

    def attach(self, handles: Mapping[str, Any], model: Model | None = None) -> TransformersSession:
        """A session on `handles["model"]` and `handles["tokenizer"]`, which stay the caller's.

        It is left in the mode it was found in after each step. The options of loading, from `dtype`
        to `adapter`, must be left at their defaults. Of `model`, `chat_template_kwargs` counts.

        Raises:
            ConfigurationError: a handle is missing or of another kind, or such an option is set.
        """
        building = _runtime()
        options = _options(self)
        _refuse_loading_options(self)
        runnable = building.borrowed(options, handles, model)
        return building.session_of(options, runnable, building.fixed_batches(runnable))


@dataclass(slots=True)
class Transformers(TransformersCompat):
    """Causal models of Transformers with continuous batching and shared prefixes.

    Generation refills a row as soon as it is free, on the model's own forward pass or, on CUDA with
    flash attention, by upstream's continuous-batching manager. A model that allows neither runs as
    in `TransformersCompat`, and `describe_execution` says why.

    Options, besides those of `TransformersCompat`:
        paged: upstream's manager: True wherever it runs, False nowhere, None where it pays.
        cache_tokens: tokens that the manager's cache holds; None: by rows and memory.
        manual_eviction, allow_block_sharing, max_batch_tokens, max_blocks_per_request,
        use_async_batching, use_cuda_graph, q_padding_interval_size, kv_padding_interval_size,
        max_cached_graphs: the manager's own; None: its default. Setting one that the installed
            version lacks is an error, and so is setting one with `paged=False`.
    """

    paged: bool | None = None
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

    capabilities = COMPAT_CAPABILITIES | {Capability.CONTINUOUS_BATCHING}

    def build(self, model: Model) -> TransformersSession:
        """Load the checkpoint, as `TransformersCompat` does.

        Raises:
            ConfigurationError: as there, or a knob of the manager that can't be set.
            EngineUnavailableError: a library or the device is missing.
        """
        building = _runtime()
        options, wishes = _options(self), _paged_wishes(self)
        runnable = building.loaded(options, model)
        return building.continuous_session(options, runnable, wishes)

    def attach(self, handles: Mapping[str, Any], model: Model | None = None) -> TransformersSession:
        """As `TransformersCompat` does; the manager is never started on a model of the caller's."""
        building = _runtime()
        options, wishes = _options(self), _paged_wishes(self)
        _refuse_loading_options(self)
        runnable = building.borrowed(options, handles, model)
        return building.continuous_session(options, runnable, wishes)


def _runtime() -> Any:
    install = "pip install evalution-transformers"
    import_runtime("torch", TORCH, install=install)
    import_runtime("transformers", TRANSFORMERS, install=install)
    from evalution_transformers import building  # noqa: PLC0415 - it imports torch

    return building


def _options(engine: TransformersCompat) -> Options:
    from evalution_transformers.building import Options  # noqa: PLC0415 - it imports torch
    from evalution_transformers.loading import Placement  # noqa: PLC0415 - it imports torch

    for name in ("batch_size", "pass_tokens", "cache_tokens", "max_batch_tokens"):
        value = getattr(engine, name, None)
        if isinstance(value, int) and value < 1:
            raise ConfigurationError(f"{name}={value} must be at least 1")
    return Options(
        type(engine).__name__,
        type(engine).capabilities,
        Placement(engine.device, engine.dtype, engine.attn_implementation, engine.adapter),
        engine.max_model_len,
        None if engine.batch_size == "auto" else engine.batch_size,
        engine.pass_tokens,
    )


def _refuse_loading_options(engine: TransformersCompat) -> None:
    default = type(engine)()
    names = ("dtype", "device", "attn_implementation", "adapter")
    given = [name for name in names if getattr(engine, name) != getattr(default, name)]
    if given:
        raise ConfigurationError(
            f"{', '.join(given)} can't be set for a model that is loaded already: attach takes it "
            f"as it is"
        )


def _paged_wishes(engine: Transformers) -> PagedWishes:
    from evalution_transformers.building import KNOBS, paged_wishes  # noqa: PLC0415 - it imports torch

    knobs = {name: getattr(engine, name) for name in KNOBS}
    return paged_wishes(engine.paged, knobs, engine.cache_tokens)
