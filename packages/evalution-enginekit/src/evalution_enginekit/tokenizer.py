"""The tokenizer as the kit sees it, and the one rule about the ids it puts before a text."""

from __future__ import annotations

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
