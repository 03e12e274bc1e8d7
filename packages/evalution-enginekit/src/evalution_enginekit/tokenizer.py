"""The tokenizer as the kit sees it, and the one rule about the ids it puts before a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from evalution_core import InvalidRequestError
from evalution_enginekit.chat import ChatTemplate


class Tokenizer(Protocol):
    """Text to ids and back. Implementations are safe to call from several threads."""

    @property
    def leading_ids(self) -> tuple[int, ...]:
        """Ids the tokenizer puts before any text by default: `(bos,)`, or none."""
        ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_id(self) -> int | None:
        """The tokenizer's end-of-sequence token."""
        ...

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

    def encode(self, text: str) -> list[int]:
        """Ids of `text` alone. Special tokens spelled out in it become their own ids."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


def encode_with_leading(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of `text` after the leading ids, which are never doubled.

    A text that spells the beginning-of-text token itself, as rendered chat does, has it once.
    """
    return with_leading(tokenizer, tokenizer.encode(text))


def with_leading(tokenizer: Tokenizer, token_ids: list[int]) -> list[int]:
    leading = list(tokenizer.leading_ids)
    return token_ids if token_ids[: len(leading)] == leading else leading + token_ids


def conditioning_id(tokenizer: Tokenizer) -> int:
    """The id that stands for an empty context: BOS, else EOS.

    Raises:
        InvalidRequestError: the tokenizer has neither.
    """
    for token_id in (tokenizer.bos_id, tokenizer.eos_id):
        if token_id is not None:
            return token_id
    raise InvalidRequestError(
        "an empty context needs a BOS or EOS token to stand for it, and this tokenizer has "
        "neither; give context_input_ids"
    )


def ids_before(whole: Sequence[int], alone: Sequence[int]) -> tuple[int, ...]:
    """What stands before `alone` in `whole`: the leading ids, found by encoding a text twice."""
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
