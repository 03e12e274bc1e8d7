"""The toy's tokenizer, in which words merge, and its language model, a table.

The next token's distribution depends on a hash of all tokens before it, so that a BOS too many, a
shifted position or a cut context shows in every number.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise

from evalution_enginekit import ByteTokenizer

_MERGES = ("answer", "garden", " the", "the", " an", "an", " is", "ne", "ng", "é", ". ")
_FIRST_MERGE = ByteTokenizer().vocabulary_size
_VOCABULARY = _FIRST_MERGE + len(_MERGES)
_MERGE_PATTERN = re.compile("|".join(map(re.escape, _MERGES)))
_SPECIAL_PATTERN = re.compile(r"(<bos>|<eos>|<user>|<assistant>)")
_ROWS = 61
_MODULUS = 1_000_003
_COMMON = (*b" etaoinshrdlu\n.,0123", 0xF0, *range(_FIRST_MERGE, _VOCABULARY))
_CAT = (0xF0, 0x9F, 0x90, 0xB1)


class MergingTokenizer(ByteTokenizer):
    """Bytes, and a few words and pieces that are one token wherever they stand."""

    def __init__(self, *, has_template: bool = True):
        super().__init__(has_template=has_template)
        self.vocabulary_size = _VOCABULARY

    def encode(self, text: str) -> list[int]:
        token_ids: list[int] = []
        for part in _SPECIAL_PATTERN.split(text):
            if _SPECIAL_PATTERN.fullmatch(part):
                token_ids += super().encode(part)
                continue
            at = 0
            for match in _MERGE_PATTERN.finditer(part):
                token_ids += part[at : match.start()].encode()
                token_ids.append(_FIRST_MERGE + _MERGES.index(match[0]))
                at = match.end()
            token_ids += part[at:].encode()
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        spelled: list[int] = []
        for token_id in token_ids:
            if token_id < _FIRST_MERGE:
                spelled.append(token_id)
            else:
                spelled += _MERGES[token_id - _FIRST_MERGE].encode()
        return super().decode(spelled, skip_special_tokens=skip_special_tokens)


class Table:
    """Log-probabilities of the next token: a row for each residue of the hash of the prefix."""

    def __init__(self, salt: int):
        chance = random.Random(salt)
        self.rows = [self._row(chance, _COMMON, 4.0) for _ in range(_ROWS)]
        # A character of four bytes, once begun, goes on.
        self.forced = {
            byte: self._row(chance, (following,), 12.0) for byte, following in pairwise(_CAT)
        }

    @staticmethod
    def _row(chance: random.Random, favoured: Iterable[int], lead: float) -> list[float]:
        logits = [chance.gauss(0, 1) for _ in range(_VOCABULARY)]
        for token_id in favoured:
            logits[token_id] += lead
        if lead < 10:
            logits[ByteTokenizer().eos_id or 0] += lead
        total = math.log(math.fsum(math.exp(logit) for logit in logits))
        return [logit - total for logit in logits]

    def after(self, state: int, last: int) -> list[float]:
        return self.forced.get(last) or self.rows[state % _ROWS]


table = cache(Table)


def advance(state: int, token_id: int) -> int:
    """The hash of a prefix with one token more."""
    return (state * 31 + token_id * 7 + 11) % _MODULUS
