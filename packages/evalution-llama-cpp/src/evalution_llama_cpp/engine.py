"""The llama.cpp engine, as configuration; nothing is loaded before `build`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    Model,
    speed_only,
    validate_options,
)
from evalution_llama_cpp.device import DeviceName, gpus_of, resolve_device
from evalution_llama_cpp.library import library
from evalution_llama_cpp.parameters import CacheType, SplitMode

if TYPE_CHECKING:
    from evalution_llama_cpp.session import LlamaCppSession

CAPABILITIES = frozenset(Capability) - {
    Capability.BEAMS,
    Capability.TOOLS,
    Capability.MULTIMODAL,
    Capability.ATTACH,
}

_LEAST = {
    "n_ctx": 0,
    "max_model_len": 2,
    "n_batch": 1,
    "n_ubatch": 1,
    "n_threads": 1,
    "n_threads_batch": 1,
    "n_gpu_layers": -1,
    "main_gpu": 0,
    "batch_size": 1,
}
_MOST = 2**31 - 1
"""What a field of llama.cpp's parameters holds; ctypes would cut larger numbers without a word."""


@dataclass(slots=True)
class LlamaCpp(BaseEngine):
    """GGUF models on llama.cpp, many sequences in one KV cache.

    `model.path` is a .gguf file, a folder with one, `builtin:tiny`, or `owner/repository:file.gguf`
    on the Hugging Face Hub (extra `[hub]`).

    Options:
        device: `auto` takes a GPU if the build has one; one that it lacks becomes the CPU, with a
            notice. `mlx` is Metal here.
        strict_device: a device that the build lacks is an error.
        continuous_batching: a free slot takes the next prompt at once; False: fixed batches.
        n_ctx: tokens that the KV cache holds, for all sequences together; 0: as many as the model
            was trained on.
        max_model_len: tokens the model is fed at most for one request; None: `n_ctx`, or what the
            model was trained on if that is less.
        flash_attn: quicker on GPUs, and no more precise than `f16` whatever the cache's type. None:
            llama.cpp's choice.
        type_k, type_v: types of the KV cache. None: `f32`, the most precise, on a CPU without flash
            attention, else `f16`. Others than `f32`, `f16` and `bf16` for `type_v` need flash
            attention.
        n_gpu_layers: layers on the GPU; None: all.
        split_mode, main_gpu, tensor_split: how several GPUs share the model.
        offload_kqv: keep the KV cache on the GPU.
        n_batch, n_ubatch: tokens of one decode, and of one pass through the model within it;
            `n_batch=None`: 128 on a CPU, where every token of a decode attends to the cells of all
            its sequences, else 512.
        n_threads, n_threads_batch: for decoding and for prompts; None: llama.cpp's choice.
        use_mmap, use_mlock: map the file rather than read it; keep it from being swapped out.
        batch_size: prompts completed side by side; fewer run where `n_ctx` has no room for them.
        llama_kwargs: further numbers and booleans of llama.cpp's `llama_model_params` and
            `llama_context_params`, such as `rope_freq_base`.
        verbose: llama.cpp's log goes to stderr.
    """

    device: DeviceName = "auto"
    strict_device: bool = False
    continuous_batching: bool = True
    n_ctx: int = 4096
    max_model_len: int | None = None
    flash_attn: bool | None = False
    type_k: CacheType | None = None
    type_v: CacheType | None = None
    n_gpu_layers: int | None = None
    split_mode: SplitMode = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] | None = None
    offload_kqv: bool = True
    n_batch: int | None = speed_only(default=None)
    n_ubatch: int = speed_only(default=512)
    n_threads: int | None = speed_only(default=None)
    n_threads_batch: int | None = speed_only(default=None)
    use_mmap: bool = speed_only(default=True)
    use_mlock: bool = speed_only(default=False)
    batch_size: int = speed_only(default=16)
    llama_kwargs: dict[str, int | float | bool] | None = None
    verbose: bool = speed_only(default=False)

    capabilities = CAPABILITIES

    def __post_init__(self) -> None:
        validate_options(self)
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None or least <= value <= _MOST:
                continue
            bound = f"at least {least}" if value < least else f"at most {_MOST}"
            raise ConfigurationError(
                f"option {name!r} of engine LlamaCpp must be {bound}, got {value}"
            )

    def describe_runtime(self) -> dict[str, Any]:
        """Version of llama-cpp-python, the GPUs that its build sees, and what `device` names.

        Raises:
            EngineUnavailableError: it is missing, or with `strict_device` the device is.
        """
        runtime = library()
        gpus = gpus_of(runtime)
        device = resolve_device(self.device, gpus, strict=self.strict_device)
        return {
            "version": f"llama-cpp-python {runtime.__version__}",
            "device": device.name,
            "gpus": list(gpus),
        }

    def build(self, model: Model) -> LlamaCppSession:
        """Load the model.

        Raises:
            ConfigurationError: no such file, one that is damaged or that llama.cpp can't load, or
                options that contradict it.
            EngineUnavailableError: llama-cpp-python is missing, or with `strict_device` the device.
        """
        runtime = library()
        from evalution_llama_cpp.building import session_of  # noqa: PLC0415 - it imports numpy

        return session_of(self, model, runtime)
