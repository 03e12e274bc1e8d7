"""The tokenizer of a session in another process: each call is a round trip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evalution_core import TextCodec

SpecialIds = tuple[tuple[int, ...], int | None, int | None]


class RemoteTokenizer:
    def __init__(self, ask: Callable[..., Any]):
        self._ask = ask

    def encode(self, text: str) -> list[int]:
        return self._ask("encode", text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._ask("decode", list(token_ids), skip_special_tokens=skip_special_tokens)


class RemoteSpecialTokenizer(RemoteTokenizer):
    """One that tells its special ids."""

    def __init__(self, ask: Callable[..., Any], special_ids: SpecialIds):
        super().__init__(ask)
        self.leading_ids, self.bos_id, self.eos_id = special_ids


def remote_tokenizer(ask: Callable[..., Any], special_ids: SpecialIds | None) -> TextCodec:
    """A tokenizer that calls `ask` with the method's name and arguments."""
    if special_ids is None:
        return RemoteTokenizer(ask)
    return RemoteSpecialTokenizer(ask, special_ids)
