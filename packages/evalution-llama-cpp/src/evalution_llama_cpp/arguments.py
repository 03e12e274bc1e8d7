"""The parameter structures of llama.cpp, made from the engine's options."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from evalution_core import ConfigurationError
from evalution_core.plugins import did_you_mean
from evalution_enginekit.gguf.file import GGUFFile
from evalution_llama_cpp.options import CacheType, LlamaCppOptions
from evalution_llama_cpp.runtime import Device
from evalution_llama_cpp.upstream import Library, Structure

_BATCH, _BATCH_ON_CPU = 512, 128
_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

_GGML_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
_BLOCK = 32
"""Values that a quantised type stores together, each of those above."""
_UNQUANTISED = ("f32", "f16", "bf16")
_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_LOAD_MMAP, _LOAD_MLOCK = 1, 2
_FLASH = {None: -1, False: 0, True: 1}
_ALL_LAYERS = -1

_PYTHON_TYPES: dict[Any, type] = {ctypes.c_bool: bool, ctypes.c_float: float}
_SCALARS = (ctypes.c_int32, ctypes.c_uint32, ctypes.c_float, ctypes.c_bool)
_OPTION_NAMES = {"load_mode": "use_mmap and use_mlock", "flash_attn_type": "flash_attn"}
_OWN_OPTIONS = {option.name: option.name for option in fields(LlamaCppOptions)} | _OPTION_NAMES
"""The engine's options by llama.cpp's names of them."""
_DECIDED = (
    "n_seq_max",
    "n_rs_seq",
    "n_outputs_max",
    "n_outputs_max_per_seq",
    "ctx_type",
    "pooling_type",
    "attention_type",
    "swa_full",
    "embeddings",
    "kv_unified",
    "vocab_only",
    "no_alloc",
    "load_mtp",
)
"""Parameters that the engine's scheduling and scoring depend on."""


@dataclass(frozen=True, slots=True)
class CacheTypes:
    """Types of the cached keys and values."""

    k: CacheType
    v: CacheType


def choose_cache_types(options: LlamaCppOptions, device: Device, weights: str) -> CacheTypes:
    """Return the cache's types: those of the options, else none narrower than the weights.

    llama.cpp's own choice, f16, moves log-probabilities by up to 5e-3 nats; on a CPU f32 costs
    about a tenth of the time. Its flash attention rounds to f16 whatever the cache's type is.
    """
    is_exact = options.flash_attn is False and (weights == "F32" or not device.offloads)
    usual = "f32" if is_exact else "f16"
    return CacheTypes(options.type_k or usual, options.type_v or usual)


def find_dtype(weights: str, options: LlamaCppOptions, cache: CacheTypes, device: Device) -> str:
    """Return the least precise type of weights, KV cache and attention, in its usual spelling.

    On CUDA products of float32 matrices have the ten bits of TF32 (`CUBLAS_TF32_TENSOR_OP_MATH` in
    ggml-cuda as of llama-cpp-python 0.3.36).
    """
    found = {weights, cache.k.upper(), cache.v.upper()}
    if options.flash_attn is not False:
        # llama.cpp's kernel rounds to f16 on the CPU: 5e-3 nats were seen with a cache of f32.
        found.add("F16")
    if found == {"F32"} and device.name.startswith("CUDA"):
        return "float32, products in TF32"
    for precise in ("F32", "F16", "BF16"):
        if found <= {"F32", precise}:
            return _FLOATS[precise]
    return "bfloat16" if found <= _FLOATS.keys() else min(found - _FLOATS.keys())


def check_llama_kwargs(library: Library, given: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` unless each is a parameter that may be set, with a fitting value.

    They are the numbers and booleans of `llama_model_params` and `llama_context_params`.
    """
    settable = _list_settable_fields(library)
    for name, value in given.items():
        if name in _OWN_OPTIONS:
            raise ConfigurationError(
                f"llama_kwargs may not hold {name!r}: set the engine's {_OWN_OPTIONS[name]}"
            )
        if name in _DECIDED:
            raise ConfigurationError(
                f"llama_kwargs may not hold {name!r}: the engine decides it itself"
            )
        if name not in settable:
            raise ConfigurationError(
                f"llama.cpp has no parameter {name!r}{did_you_mean(name, settable)} "
                f"(llama_kwargs may hold: {', '.join(sorted(settable))})"
            )
        wanted = _PYTHON_TYPES.get(settable[name], int)
        fits = isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
        if not fits and not (wanted is float and type(value) is int):
            raise ConfigurationError(
                f"llama_kwargs: {name!r} must be a {wanted.__name__}, got {value!r}"
            )


def check_key_type(type_k: CacheType, file: GGUFFile, *, flash_attn: bool | None) -> None:
    """Raise `ConfigurationError` if a head's keys aren't whole blocks of the cache's type.

    Without flash attention llama.cpp as of llama-cpp-python 0.3.36 computes nonsense then, and says
    nothing; with it, it refuses.
    """
    if type_k in _UNQUANTISED or flash_attn is not False:
        return
    for size in _find_key_sizes(file):
        if size % _BLOCK:
            raise ConfigurationError(
                f"type_k={type_k!r} stores {_BLOCK} values together and the heads of "
                f"{file.path.name} have {size}; take one of {', '.join(_UNQUANTISED)}"
            )


def make_model_params(library: Library, options: LlamaCppOptions, gpus: Sequence[int]) -> Structure:
    """Return `llama_model_params` for the options and the handles of the GPUs to use."""
    params = library.llama_model_default_params()
    layers = _ALL_LAYERS if options.n_gpu_layers is None else options.n_gpu_layers
    params.n_gpu_layers = layers if gpus else 0
    # Without a list the library takes every device there is, for large batches even with no layer
    # on it. The list ends with a null; the structure keeps it alive.
    params.listed = (ctypes.c_void_p * (len(gpus) + 1))(*gpus, None)
    params.devices = ctypes.addressof(params.listed)
    params.main_gpu = options.main_gpu
    params.split_mode = _SPLIT_MODES[options.split_mode]
    params.load_mode = _LOAD_MMAP * options.use_mmap + _LOAD_MLOCK * options.use_mlock
    if options.tensor_split is not None:
        # The library reads as many as it has room for devices; the rest has to be there, and zero.
        room = library.llama_max_devices()
        if len(options.tensor_split) > room:
            raise ConfigurationError(
                f"tensor_split has {len(options.tensor_split)} shares and llama.cpp takes {room}"
            )
        params.tensor_split = (ctypes.c_float * room)(*options.tensor_split)
    _set_fields(params, library.llama_model_params, options.llama_kwargs or {})
    return params


def make_context_params(
    library: Library,
    options: LlamaCppOptions,
    device: Device,
    cache: CacheTypes,
    *,
    n_ctx: int,
    sequences: int,
) -> Structure:
    """Return `llama_context_params` for one cache of `n_ctx` cells that `sequences` share."""
    params = library.llama_context_default_params()
    # The library aborts the process where a batch has no room for a row of each sequence, and it
    # cuts the batch to the cache. More cells than were asked for stay unused.
    params.n_ctx = max(n_ctx, sequences)
    n_batch = options.n_batch or (_BATCH if device.offloads else _BATCH_ON_CPU)
    params.n_batch = max(min(n_batch, n_ctx), sequences)
    params.n_ubatch = min(options.n_ubatch, params.n_batch)
    params.n_seq_max = sequences
    params.kv_unified = True
    # The cells are counted as if every layer had as many.
    params.swa_full = True
    params.no_perf = True
    if options.n_threads is not None:
        params.n_threads = options.n_threads
        params.n_threads_batch = options.n_threads
    if options.n_threads_batch is not None:
        params.n_threads_batch = options.n_threads_batch
    params.flash_attn_type = _FLASH[options.flash_attn]
    params.offload_kqv = options.offload_kqv
    params.type_k, params.type_v = _GGML_TYPES[cache.k], _GGML_TYPES[cache.v]
    _set_fields(params, library.llama_context_params, options.llama_kwargs or {})
    return params


def _find_key_sizes(file: GGUFFile) -> list[int]:
    """Return the number of values in a head's key, in layers with a window and in the others."""
    lengths = [file.hyperparameter(f"attention.key_length{kind}") for kind in ("", "_swa")]
    sizes = [size for size in lengths if isinstance(size, int)]
    width, heads = map(file.hyperparameter, ("embedding_length", "attention.head_count"))
    if not sizes and isinstance(width, int) and isinstance(heads, int) and heads:
        sizes = [width // heads]
    return sizes


def _list_settable_fields(library: Library) -> dict[str, Any]:
    every = (*library.llama_model_params._fields_, *library.llama_context_params._fields_)
    return {
        name: kind
        for name, kind in every
        if kind in _SCALARS and name not in _OWN_OPTIONS and name not in _DECIDED
    }


def _set_fields(params: Structure, kind: Any, given: Mapping[str, Any]) -> None:
    names = {name for name, _ in kind._fields_}
    for name, value in given.items():
        if name in names:
            setattr(params, name, value)
