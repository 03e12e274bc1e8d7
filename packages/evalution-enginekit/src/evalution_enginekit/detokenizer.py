"""Ids to text while they arrive, never breaking a character."""

from __future__ import annotations

from collections.abc import Sequence

from evalution_enginekit.tokenizer import Tokenizer

_CONTEXT = 6
_LONGEST_HOLD = 32
"""Tokens after which bytes that still end in an incomplete character are taken for broken ones."""


class Detokenizer:
    """Text of a continuation as it reads after its prompt, special tokens spelled out.

    A token is decoded together with those before it, since many vocabularies bind a space or a
    part of a character to the neighbour (the method of text-generation-inference and vLLM: two
    offsets, and bytes held back while they decode to U+FFFD).
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]):
        self._decode = tokenizer.decode
        self._ids = list(prompt_ids[-_CONTEXT:])
        self._context = 0
        self._read = len(self._ids)
        self._context_text = self._text(0, self._read)

    def push(self, token_id: int) -> str:
        """Text that is complete with this token; empty while a character is incomplete."""
        self._ids.append(token_id)
        text = self._text(self._context, len(self._ids))
        held = len(self._ids) - self._read
        if text.endswith("\ufffd") and held <= _LONGEST_HOLD:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        """What is left when no more tokens come; an incomplete character reads U+FFFD."""
        if self._read == len(self._ids):
            return ""
        return self._advance(self._text(self._context, len(self._ids)))

    def _advance(self, text: str) -> str:
        piece = text[len(self._context_text) :]
        self._context, self._read = self._read, len(self._ids)
        self._context_text = self._text(self._context, self._read)
        return piece

    def _text(self, begin: int, end: int) -> str:
        return self._decode(self._ids[begin:end], skip_special_tokens=False)
