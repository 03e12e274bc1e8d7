"""llama.cpp's own tokenizer, as the kit sees it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from evalution_enginekit.chat import ChatTemplate
from evalution_enginekit.gguf.file import GGUFFile
from evalution_llama_cpp.weights import Weights

_UNKNOWN, _CONTROL = 1 << 0, 1 << 3
_LONGEST_PIECE = 64
_NO_VOCABULARY = ("none", "no_vocab")


def takes_any_text(file: GGUFFile) -> bool:
    """Whether llama.cpp's own tokenizer for the file can be called with any text.

    It aborts the process if the file has no vocabulary, or one of SentencePiece's that lacks a
    token for a byte which it meets (llama-vocab.cpp as of llama-cpp-python 0.3.36).
    """
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind == "llama":
        tokens = set(file.metadata.get("tokenizer.ggml.tokens", ()))
        return all(f"<0x{byte:02X}>" in tokens for byte in range(256))
    return kind not in _NO_VOCABULARY


class LlamaTokenizer:
    """The vocabulary of a loaded model. It works as long as the model is loaded.

    Text is put together from the bytes of the tokens, so that a character which several tokens
    share comes out whole, and no space is tidied away.
    """

    def __init__(self, weights: Weights, chat_template: ChatTemplate | None):
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
        self._leads_with_space = self._spelled(self.encode("a")).startswith(b" ")

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
        text = self._spelled(kept).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self._leads_with_space else text

    def _spelled(self, token_ids: Sequence[int]) -> bytes:
        pieces = self._pieces
        for token_id in token_ids:
            if token_id not in pieces:
                pieces[token_id] = self._piece(token_id)
        return b"".join(map(pieces.__getitem__, token_ids))

    def _piece(self, token_id: int) -> bytes:
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
