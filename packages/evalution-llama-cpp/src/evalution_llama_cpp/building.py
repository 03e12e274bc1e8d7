"""From options and a file to a session."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from evalution_core import Capability, ConfigurationError, Model
from evalution_enginekit import Tokenizer, files_identity, model_identity
from evalution_enginekit.chat import bound_template
from evalution_enginekit.gguf.file import GGUFFile
from evalution_enginekit.gguf.source import gguf_file_of, parts_of
from evalution_enginekit.gguf.tokenizer import chat_template_of, gguf_tokenizer_of
from evalution_enginekit.model_source import refuse_gguf_model_fields, told_arguments
from evalution_enginekit.tokenizer_files import named_tokenizer
from evalution_llama_cpp.context import Context
from evalution_llama_cpp.device import Device, gpus_of, resolve_device
from evalution_llama_cpp.library import LOG, Library
from evalution_llama_cpp.parameters import (
    Parameters,
    check_key_type,
    check_llama_kwargs,
    context_params,
    model_params,
)
from evalution_llama_cpp.session import LlamaCppSession
from evalution_llama_cpp.tokenizer import LlamaTokenizer, takes_any_text
from evalution_llama_cpp.weights import Weights, unsuitable

if TYPE_CHECKING:
    from evalution_llama_cpp.engine import LlamaCpp

_SCORING_SEQUENCES = 48
"""Sequences besides those that generate: branches that scoring runs side by side, and its head."""
_BATCH, _BATCH_ON_CPU = 512, 128
_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def session_of(engine: LlamaCpp, model: Model, library: Library) -> LlamaCppSession:
    """A session for the engine's options; what fails half-way is freed."""
    refuse_gguf_model_fields(
        engine, model, "parameters of llama.cpp go into the engine's llama_kwargs"
    )
    LOG.echo = engine.verbose
    gpus = gpus_of(library)
    device = resolve_device(engine.device, gpus, strict=engine.strict_device)
    wanted = parameters_of(engine, device)
    check_llama_kwargs(library, wanted.llama_kwargs)
    handles = [gpus[name] for name in device.gpus]
    file = gguf_file_of(model, "LlamaCpp")
    if file.of_architecture("attention.causal") is False:
        raise unsuitable(file.path.name, "a model whose tokens see those behind them")
    check_key_type(wanted, file)
    with ExitStack() as half_built:
        weights = Weights(library, file.path, model_params(library, wanted, handles))
        half_built.callback(weights.free)
        cells = engine.n_ctx or weights.trained_length
        window = window_of(engine.max_model_len, cells, weights.trained_length)
        tokenizer = _tokenizer(model, file, weights)
        sequences = min(
            engine.batch_size + _SCORING_SEQUENCES, library.llama_max_parallel_sequences()
        )
        params = context_params(library, wanted, n_ctx=cells, sequences=sequences)
        context = Context(weights, params)
        half_built.callback(context.free)
        session = LlamaCppSession(
            capabilities=_capabilities(engine),
            weights=weights,
            context=context,
            cells=cells,
            tokenizer=tokenizer,
            max_model_len=window,
            batch_size=engine.batch_size,
            dtype=arithmetic(file.weight_type, wanted),
            described=_described(engine, wanted, file, device, cells)
            | {"sequences": context.sequences, "n_batch": context.batch.capacity},
            identified=_identity(model, file),
        )
        half_built.pop_all()
    return session


def parameters_of(engine: LlamaCpp, device: Device) -> Parameters:
    # llama.cpp's own choice, f16, moves log-probabilities by up to 5e-3 nats; on a CPU f32 costs
    # about a tenth of the time. Its flash attention rounds to f16 whatever the cache's type is.
    cache_type = "f16" if device.offloads or engine.flash_attn is not False else "f32"
    return Parameters(
        n_ctx=engine.n_ctx,
        n_batch=engine.n_batch or (_BATCH if device.offloads else _BATCH_ON_CPU),
        n_ubatch=engine.n_ubatch,
        n_threads=engine.n_threads,
        n_threads_batch=engine.n_threads_batch,
        n_gpu_layers=engine.n_gpu_layers,
        main_gpu=engine.main_gpu,
        split_mode=engine.split_mode,
        tensor_split=engine.tensor_split,
        flash_attn=engine.flash_attn,
        offload_kqv=engine.offload_kqv,
        use_mmap=engine.use_mmap,
        use_mlock=engine.use_mlock,
        type_k=engine.type_k or cache_type,
        type_v=engine.type_v or cache_type,
        llama_kwargs=engine.llama_kwargs or {},
    )


def window_of(asked: int | None, cells: int, trained: int) -> int:
    """Tokens that the model is fed at most for one request.

    Raises:
        ConfigurationError: more than the cache holds, or too few for a context and a token.
    """
    window = min(cells, trained) if asked is None else asked
    if window > cells:
        raise ConfigurationError(f"max_model_len={window} doesn't fit n_ctx={cells}")
    if window < 2:
        raise ConfigurationError(f"n_ctx={cells} leaves no room for a context and a token")
    return window


def arithmetic(weights: str, wanted: Parameters) -> str:
    """The least precise of weights, KV cache and attention, by its usual name where it has one."""
    found = {weights, wanted.type_k.upper(), wanted.type_v.upper()}
    if wanted.flash_attn is not False:
        # llama.cpp's kernel rounds to f16 on the CPU: 5e-3 nats were seen with a cache of f32.
        found.add("F16")
    for precise in ("F32", "F16", "BF16"):
        if found <= {"F32", precise}:
            return _FLOATS[precise]
    return "bfloat16" if found <= _FLOATS.keys() else min(found - _FLOATS.keys())


def _capabilities(engine: LlamaCpp) -> frozenset[Capability]:
    every = type(engine).capabilities
    return every if engine.continuous_batching else every - {Capability.CONTINUOUS_BATCHING}


def _tokenizer(model: Model, file: GGUFFile, weights: Weights) -> Tokenizer:
    """llama.cpp's own, unless the model names another or llama.cpp's would end the process."""
    if model.tokenizer is None and named_tokenizer(model) is None and takes_any_text(file):
        return LlamaTokenizer(weights, bound_template(model, chat_template_of(file)))
    tokenizer = gguf_tokenizer_of(model, file)
    if tokenizer.vocabulary_size > weights.vocabulary_size:
        raise ConfigurationError(
            f"the tokenizer has {tokenizer.vocabulary_size} tokens and the model in {weights.name} "
            f"{weights.vocabulary_size}: it is another model's"
        )
    return tokenizer


def _identity(model: Model, file: GGUFFile) -> dict[str, Any] | None:
    parts = files_identity(parts_of(file.path))
    named = model_identity(model, file.path.parent, ())
    if named is None:
        return None
    # Of the folder only the file counts; a tokenizer that lies elsewhere counts too.
    beside = {name: told for name, told in named.items() if "tokenizer/" in name}
    return {**parts, **beside, **told_arguments(model)}


def _described(
    engine: LlamaCpp, wanted: Parameters, file: GGUFFile, device: Device, cells: int
) -> dict[str, Any]:
    layers = engine.n_gpu_layers if device.offloads else 0
    return {
        "device": device.name,
        "fallback": device.fallback,
        "device_fallback": device.fallback,
        "requested_device": engine.device,
        "n_gpu_layers": "all" if layers is None else layers,
        "weights": file.weight_type,
        "kv_cache": {"k": wanted.type_k, "v": wanted.type_v, "cells": cells},
        "attention": {None: "llama.cpp's choice", True: "flash", False: "eager"}[engine.flash_attn],
        "prefix_sharing": True,
    }
