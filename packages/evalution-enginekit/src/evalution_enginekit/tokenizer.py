"""The tokenizer as the kit sees it, and one of bytes for tests and toys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from evalution_core import TextCodec
from evalution_enginekit.chat import ChatTemplate


class Tokenizer(TextCodec, Protocol):
    """A `TextCodec` with what generation and chat need. Safe to call from several threads."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """All ids that end a generation: `eos_id`, end of turn, and what the model declares."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that are not text: absent from a completion's text."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id."""
        ...

    @property
    def chat_template(self) -> ChatTemplate | None: ...


def find_leading_ids(whole: Sequence[int], alone: Sequence[int]) -> tuple[int, ...]:
    """Return what stands before `alone` in `whole`: a text encoded with and without leading ids."""
    for at in range(len(whole) - len(alone) + 1):
        if list(whole[at : at + len(alone)]) == list(alone):
            return tuple(whole[:at])
    return ()


_SPECIALS = ("<bos>", "<eos>", "<user>", "<assistant>")
_BYTES = 256
_PATTERN = re.compile("|".join(map(re.escape, _SPECIALS)))
_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class ByteTokenizer:
    """UTF-8 bytes as ids 0 to 255, then `<bos>`, `<eos>`, `<user>`, `<assistant>`.

    Args:
        adds_bos: whether `<bos>` leads every text.
        has_template: whether it can render chat.
    """

    def __init__(self, *, adds_bos: bool = True, has_template: bool = True):
        self.leading_ids: tuple[int, ...] = (_BYTES,) if adds_bos else ()
        self.bos_id: int | None = _BYTES
        self.eos_id: int | None = _BYTES + 1
        self.eos_ids = frozenset({_BYTES + 1})
        self.special_ids = frozenset(range(_BYTES, _BYTES + len(_SPECIALS)))
        self.vocabulary_size = _BYTES + len(_SPECIALS)
        self.chat_template = ChatTemplate(_TEMPLATE) if has_template else None

    def encode(self, text: str) -> list[int]:
        token_ids: list[int] = []
        at = 0
        for match in _PATTERN.finditer(text):
            token_ids.extend(text[at : match.start()].encode())
            token_ids.append(_BYTES + _SPECIALS.index(match[0]))
            at = match.end()
        token_ids.extend(text[at:].encode())
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        spelled = bytearray()
        for token_id in token_ids:
            if token_id < _BYTES:
                spelled.append(token_id)
            elif not skip_special_tokens:
                spelled.extend(_SPECIALS[token_id - _BYTES].encode())
        return spelled.decode("utf-8", errors="replace")
