"""A model in llama.cpp's memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from evalution_core import ConfigurationError, SessionClosedError
from evalution_llama_cpp.library import LOG, Handle, Library, Structure


def unsuitable(name: str, kind: str) -> ConfigurationError:
    """The error that says why the model in the file `name` isn't run here."""
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
        if (kind := self._unsuitable()) is not None:
            self.free()
            raise unsuitable(path.name, kind)

    @property
    def handle(self) -> Handle:
        return self._handle

    @property
    def trained_length(self) -> int:
        """Tokens of the longest text that the model was trained on."""
        return self.library.llama_model_n_ctx_train(self._handle)

    @contextmanager
    def open(self) -> Generator[tuple[Library, Handle]]:
        """Library and vocabulary, which stay while the context is entered.

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

    def _unsuitable(self) -> str | None:
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
