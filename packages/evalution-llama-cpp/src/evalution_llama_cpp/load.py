"""Load a GGUF model and its tokenizer into llama.cpp."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalution_core import ConfigurationError, Model, SessionClosedError
from evalution_enginekit import Tokenizer, files_identity, model_identity
from evalution_enginekit.chat import ChatTemplate, bind_template
from evalution_enginekit.gguf.file import GGUFFile, list_parts, read_model_file
from evalution_enginekit.gguf.tokenizer import (
    find_end_ids,
    find_named_ends,
    load_gguf_tokenizer,
    read_chat_template,
)
from evalution_enginekit.model_source import list_identity_arguments
from evalution_enginekit.tokenizer import find_tokenizer_name
from evalution_llama_cpp.arguments import (
    check_key_type,
    check_llama_kwargs,
    choose_cache_types,
    make_model_params,
)
from evalution_llama_cpp.options import LlamaCppOptions
from evalution_llama_cpp.runtime import LOG, Device, choose_device, find_gpus
from evalution_llama_cpp.upstream import Handle, Library, Structure

_UNKNOWN, _CONTROL = 1 << 0, 1 << 3
_LONGEST_PIECE = 64
_NO_VOCABULARY = ("none", "no_vocab")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory with its tokenizer and the file that it was read from.

    `identity` holds SHA-256 of its files; None with a tokenizer that has no files here.
    `named_ends` are tokens that end a generation by their names alone.
    """

    weights: Weights
    tokenizer: Tokenizer
    file: GGUFFile
    device: Device
    identity: dict[str, Any] | None
    named_ends: dict[str, int]


def load_model(options: LlamaCppOptions, model: Model, library: Library) -> LoadedModel:
    """Load the model's file; a load that fails half-way frees what it took.

    Raises:
        ConfigurationError: there is no such file, it is damaged, llama.cpp refuses it, the model
            can't be scored token by token, or the options contradict it.
        EngineUnavailableError: the device is missing and `strict_device` is set.
    """
    LOG.echo = options.verbose
    gpus = find_gpus(library)
    device = choose_device(options.device, gpus, strict=options.strict_device)
    check_llama_kwargs(library, options.llama_kwargs or {})
    file = read_model_file(model, "LlamaCpp")
    if file.hyperparameter("attention.causal") is False:
        raise unsuitable_model_error(file.path.name, "a model whose tokens see those behind them")
    type_k = choose_cache_types(options, device, file.weight_type).k
    check_key_type(type_k, file, flash_attn=options.flash_attn)
    params = make_model_params(library, options, [gpus[name].handle for name in device.gpus])
    with ExitStack() as half_built:
        weights = Weights(library, file.path, params)
        half_built.callback(weights.free)
        tokenizer, named_ends = _load_tokenizer(options, model, file, weights)
        identity = _identify(model, file)
        half_built.pop_all()
    return LoadedModel(weights, tokenizer, file, device, identity, named_ends)


def _load_tokenizer(
    options: LlamaCppOptions, model: Model, file: GGUFFile, weights: Weights
) -> tuple[Tokenizer, dict[str, int]]:
    """Return llama.cpp's tokenizer, unless the model names one or it would abort the process.

    Beside it, the tokens that end a generation by their names.
    """
    by_name = options.ends_by_name
    if model.tokenizer is None and find_tokenizer_name(model) is None and accepts_any_text(file):
        own = LlamaTokenizer(weights, bind_template(model, read_chat_template(file)))
        declared = find_end_ids(file, by_name=False)
        added = own.eos_ids - declared if by_name else frozenset[int]()
        own.eos_ids = declared | added
        return own, {own.decode([i], skip_special_tokens=False): i for i in sorted(added)}
    tokenizer = load_gguf_tokenizer(model, file, ends_by_name=by_name)
    if tokenizer.vocabulary_size > weights.vocabulary_size:
        raise ConfigurationError(
            f"the tokenizer has {tokenizer.vocabulary_size} tokens and the model in {weights.name} "
            f"{weights.vocabulary_size}: it is another model's"
        )
    return tokenizer, find_named_ends(file) if by_name else {}


def _identify(model: Model, file: GGUFFile) -> dict[str, Any] | None:
    parts = files_identity(list_parts(file.path))
    named = model_identity(model, file.path.parent, ())
    if named is None:
        return None
    # Of the folder only the model's file counts, and a tokenizer that is elsewhere.
    beside = {name: value for name, value in named.items() if "tokenizer/" in name}
    return {**parts, **beside, **list_identity_arguments(model)}


def unsuitable_model_error(name: str, kind: str) -> ConfigurationError:
    """Return the error for a model in the file `name` that isn't run here."""
    return ConfigurationError(
        f"{name} is {kind}, and engine LlamaCpp runs decoders with a KV cache: a token is scored "
        "by those before it, and sequences share and drop parts of their context; engine "
        "Transformers takes recurrent models"
    )


class Weights:
    """A loaded model and its vocabulary; `free` ends both.

    Raises:
        ConfigurationError: llama.cpp refuses the file, in its own words, or the model is of a kind
            that can't be scored token by token.
    """

    def __init__(self, library: Library, path: Path, params: Structure):
        self.library = library
        self.name = path.name
        self._lock = threading.Lock()
        LOG.forget()
        self._handle: Handle = library.llama_model_load_from_file(os.fsencode(path), params)
        if not self._handle:
            raise ConfigurationError(f"llama.cpp can't load {path}{LOG.tail()}")
        self.vocabulary: Handle = library.llama_model_get_vocab(self._handle)
        self.vocabulary_size = library.llama_vocab_n_tokens(self.vocabulary)
        if (kind := self._find_obstacle()) is not None:
            self.free()
            raise unsuitable_model_error(path.name, kind)

    @property
    def handle(self) -> Handle:
        return self._handle

    @property
    def trained_length(self) -> int:
        """Length of the texts that the model was trained on, in tokens."""
        return self.library.llama_model_n_ctx_train(self._handle)

    @contextmanager
    def open(self) -> Generator[tuple[Library, Handle]]:
        """Give library and vocabulary, which stay valid while the context is entered.

        Raises:
            SessionClosedError: the model was freed: the library would crash.
        """
        with self._lock:
            if self._handle is None:
                raise SessionClosedError(
                    "the model of this tokenizer was closed; build a new session"
                )
            yield self.library, self.vocabulary

    def free(self) -> None:
        with self._lock:
            if self._handle is not None:
                self.library.llama_model_free(self._handle)
                self._handle = None

    def _find_obstacle(self) -> str | None:
        library, handle = self.library, self._handle
        if library.llama_model_has_encoder(handle):
            return "an encoder or encoder-decoder model"
        if library.llama_model_is_diffusion(handle):
            return "a diffusion model"
        if library.llama_model_is_hybrid(handle):
            return "a hybrid model, recurrent in part"
        if library.llama_model_is_recurrent(handle):
            return "a recurrent model"
        return None


def accepts_any_text(file: GGUFFile) -> bool:
    """Return whether llama.cpp's own tokenizer for the file can be called with any text.

    It aborts the process if the file has no vocabulary, or one of SentencePiece's that lacks a
    token for a byte which it meets (llama-vocab.cpp as of llama-cpp-python 0.3.36).
    """
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind == "llama":
        tokens = set(file.metadata.get("tokenizer.ggml.tokens", ()))
        return all(f"<0x{byte:02X}>" in tokens for byte in range(256))
    return kind not in _NO_VOCABULARY


class LlamaTokenizer:
    """llama.cpp's own tokenizer of a loaded model; it works as long as the model is loaded.

    Text is joined from the bytes of the tokens, so that a character which several tokens share
    comes out whole, and no space is removed.
    """

    def __init__(self, weights: Weights, chat_template: ChatTemplate | None):
        self.source = "llama.cpp"
        self.notice: str | None = None
        self._weights = weights
        library, vocabulary = weights.library, weights.vocabulary
        bos, eos = library.llama_vocab_bos(vocabulary), library.llama_vocab_eos(vocabulary)
        self.bos_id = bos if bos >= 0 else None
        self.eos_id = eos if eos >= 0 else None
        adds_bos = library.llama_vocab_get_add_bos(vocabulary) and self.bos_id is not None
        self.leading_ids: tuple[int, ...] = (bos,) if adds_bos else ()
        self.vocabulary_size = weights.vocabulary_size
        every = range(self.vocabulary_size)
        self.eos_ids = frozenset(i for i in every if library.llama_vocab_is_eog(vocabulary, i))
        self.special_ids = frozenset(
            i for i in every if library.llama_vocab_get_attr(vocabulary, i) & (_UNKNOWN | _CONTROL)
        )
        self.chat_template = chat_template
        self._pieces: dict[int, bytes] = {}
        # A SentencePiece vocabulary puts a space before a text, which isn't the text's own.
        self._leads_with_space = self._join_bytes(self.encode("a")).startswith(b" ")

    def encode(self, text: str) -> list[int]:
        spelled = text.encode()
        # No token is shorter than a byte, but for a space that is put before a text or part of it.
        limit = len(spelled) + 16
        with self._weights.open() as (library, vocabulary):
            while True:
                ids = (ctypes.c_int32 * limit)()
                count = library.llama_tokenize(
                    vocabulary, spelled, len(spelled), ids, limit, False, True
                )
                if count >= 0:
                    return list(ids[:count])
                limit = -count

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        special = self.special_ids
        kept = [i for i in token_ids if not (skip_special_tokens and i in special)]
        text = self._join_bytes(kept).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self._leads_with_space else text

    def _join_bytes(self, token_ids: Sequence[int]) -> bytes:
        pieces = self._pieces
        for token_id in token_ids:
            if token_id not in pieces:
                pieces[token_id] = self._read_piece(token_id)
        return b"".join(map(pieces.__getitem__, token_ids))

    def _read_piece(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocabulary_size:
            return b""
        length = _LONGEST_PIECE
        with self._weights.open() as (library, vocabulary):
            while True:
                buffer = ctypes.create_string_buffer(length)
                count = library.llama_token_to_piece(vocabulary, token_id, buffer, length, 0, True)
                if count >= 0:
                    return buffer.raw[:count]
                length = -count
