"""Options as the parameter structures of llama.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from evalution_core import ConfigurationError
from evalution_core.plugins import did_you_mean
from evalution_enginekit.gguf.file import GGUFFile
from evalution_llama_cpp.library import Library, Structure

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
SplitMode = Literal["none", "layer", "row", "tensor"]

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
_LOAD_NONE, _LOAD_MMAP, _LOAD_MLOCK, _LOAD_BOTH = 0, 1, 2, 3
_FLASH = {None: -1, False: 0, True: 1}
_ALL_LAYERS = -1

_SCALARS = (ctypes.c_int32, ctypes.c_uint32, ctypes.c_float, ctypes.c_bool)
_OWN_OPTIONS = {
    "n_ctx": "n_ctx",
    "n_batch": "n_batch",
    "n_ubatch": "n_ubatch",
    "n_threads": "n_threads",
    "n_threads_batch": "n_threads_batch",
    "n_gpu_layers": "n_gpu_layers",
    "main_gpu": "main_gpu",
    "split_mode": "split_mode",
    "load_mode": "use_mmap and use_mlock",
    "flash_attn_type": "flash_attn",
    "offload_kqv": "offload_kqv",
    "type_k": "type_k",
    "type_v": "type_v",
}
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
"""What the engine decides itself: its scheduling and scoring rest on it."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The options that llama.cpp is given, as the engine has them; see `LlamaCpp`."""

    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_threads: int | None
    n_threads_batch: int | None
    n_gpu_layers: int | None
    main_gpu: int
    split_mode: SplitMode
    tensor_split: Sequence[float] | None
    flash_attn: bool | None
    offload_kqv: bool
    use_mmap: bool
    use_mlock: bool
    type_k: CacheType
    type_v: CacheType
    llama_kwargs: Mapping[str, Any]


def check_llama_kwargs(library: Library, given: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` unless each is a parameter that may be set, with a fitting value.

    They are the numbers and booleans of `llama_model_params` and `llama_context_params`.
    """
    fields = _fields(library)
    for name, value in given.items():
        if name in _OWN_OPTIONS:
            raise ConfigurationError(
                f"llama_kwargs may not hold {name!r}: set the engine's {_OWN_OPTIONS[name]}"
            )
        if name in _DECIDED:
            raise ConfigurationError(
                f"llama_kwargs may not hold {name!r}: the engine decides it itself"
            )
        if name not in fields:
            raise ConfigurationError(
                f"llama.cpp has no parameter {name!r}{did_you_mean(name, fields)} "
                f"(llama_kwargs may hold: {', '.join(sorted(fields))})"
            )
        wanted = _python_type(fields[name])
        fits = isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
        if not fits and not (wanted is float and type(value) is int):
            raise ConfigurationError(
                f"llama_kwargs: {name!r} must be a {wanted.__name__}, got {value!r}"
            )


def check_key_type(wanted: Parameters, file: GGUFFile) -> None:
    """Raise `ConfigurationError` if a head's keys aren't whole blocks of the cache's type.

    Without flash attention llama.cpp as of llama-cpp-python 0.3.36 computes nonsense then, and says
    nothing; with it, it refuses.
    """
    if wanted.type_k in _UNQUANTISED or wanted.flash_attn is not False:
        return
    for size in _key_sizes(file):
        if size % _BLOCK:
            raise ConfigurationError(
                f"type_k={wanted.type_k!r} stores {_BLOCK} values together and the heads of "
                f"{file.path.name} have {size}; take one of {', '.join(_UNQUANTISED)}"
            )


def model_params(library: Library, wanted: Parameters, gpus: Sequence[int]) -> Structure:
    """`llama_model_params` for the options; `gpus` are the devices beside the CPU, by handle."""
    params = library.llama_model_default_params()
    layers = _ALL_LAYERS if wanted.n_gpu_layers is None else wanted.n_gpu_layers
    params.n_gpu_layers = layers if gpus else 0
    # Without a list the library takes every device there is, for large batches even with no layer
    # on it. The list ends with a null; the structure keeps it alive.
    params.listed = (ctypes.c_void_p * (len(gpus) + 1))(*gpus, None)
    params.devices = ctypes.addressof(params.listed)
    params.main_gpu = wanted.main_gpu
    params.split_mode = _SPLIT_MODES[wanted.split_mode]
    params.load_mode = (
        (_LOAD_BOTH if wanted.use_mlock else _LOAD_MMAP)
        if wanted.use_mmap
        else (_LOAD_MLOCK if wanted.use_mlock else _LOAD_NONE)
    )
    if wanted.tensor_split is not None:
        # The library reads as many as it has room for devices; the rest has to be there, and zero.
        room = library.llama_max_devices()
        if len(wanted.tensor_split) > room:
            raise ConfigurationError(
                f"tensor_split has {len(wanted.tensor_split)} shares and llama.cpp takes {room}"
            )
        params.tensor_split = (ctypes.c_float * room)(*wanted.tensor_split)
    _apply(params, library.llama_model_params, wanted.llama_kwargs)
    return params


def context_params(
    library: Library, wanted: Parameters, *, n_ctx: int, sequences: int
) -> Structure:
    """`llama_context_params`: one cache of `n_ctx` cells that `sequences` sequences share."""
    params = library.llama_context_default_params()
    # The library aborts the process where a batch has no room for a row of each sequence, and it
    # cuts the batch to the cache. More cells than were asked for stay unused.
    params.n_ctx = max(n_ctx, sequences)
    params.n_batch = max(min(wanted.n_batch, n_ctx), sequences)
    params.n_ubatch = min(wanted.n_ubatch, params.n_batch)
    params.n_seq_max = sequences
    params.kv_unified = True
    # The cells are counted as if every layer had as many.
    params.swa_full = True
    params.no_perf = True
    if wanted.n_threads is not None:
        params.n_threads = wanted.n_threads
        params.n_threads_batch = wanted.n_threads
    if wanted.n_threads_batch is not None:
        params.n_threads_batch = wanted.n_threads_batch
    params.flash_attn_type = _FLASH[wanted.flash_attn]
    params.offload_kqv = wanted.offload_kqv
    params.type_k = _GGML_TYPES[wanted.type_k]
    params.type_v = _GGML_TYPES[wanted.type_v]
    _apply(params, library.llama_context_params, wanted.llama_kwargs)
    return params


def _key_sizes(file: GGUFFile) -> list[int]:
    """How many values a head's key has, in layers with a window and in the others."""
    told = [file.of_architecture(f"attention.key_length{kind}") for kind in ("", "_swa")]
    sizes = [size for size in told if isinstance(size, int)]
    width, heads = map(file.of_architecture, ("embedding_length", "attention.head_count"))
    if not sizes and isinstance(width, int) and isinstance(heads, int) and heads:
        sizes = [width // heads]
    return sizes


def _fields(library: Library) -> dict[str, Any]:
    every = (*library.llama_model_params._fields_, *library.llama_context_params._fields_)
    return {
        name: kind
        for name, kind in every
        if kind in _SCALARS and name not in _OWN_OPTIONS and name not in _DECIDED
    }


def _python_type(kind: Any) -> type:
    return {ctypes.c_bool: bool, ctypes.c_float: float}.get(kind, int)


def _apply(params: Structure, kind: Any, given: Mapping[str, Any]) -> None:
    names = {name for name, _ in kind._fields_}
    for name, value in given.items():
        if name in names:
            setattr(params, name, value)
