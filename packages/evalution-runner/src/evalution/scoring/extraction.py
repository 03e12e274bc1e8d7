"""Filters that find an answer by its question: one of the row's choices, words, or numbers.

Each finds what lm-evaluation-harness 0.4.13's filter for the same tasks finds.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from evalution.scoring.filters import Regex

NOTHING = "[invalid]"
_LETTER = r"(\([A-Z]\))"


@cache
def _list_punctuation() -> dict[int, None]:
    """All of Unicode's punctuation, as `str.translate` removes it."""
    characters = range(sys.maxunicode)
    return dict.fromkeys(n for n in characters if unicodedata.category(chr(n)).startswith("P"))


@dataclass(frozen=True, slots=True)
class ChoiceFinder:
    """The letter of a choice: written as `(B)`, else the choice's text, else a letter after `:`.

    A text is compared without case and punctuation, the longest choice first. `last` takes the last
    of several in place of the first.
    """

    choices: Sequence[str]
    last: bool = False

    def apply(self, text: str) -> str:
        return self._find(_LETTER, text) or self._find_text(text) or self._find_letter(text)

    def _find_text(self, text: str) -> str:
        letters = {_simplify(choice.strip()): f"({name})" for name, choice in self._named()}
        longest = sorted((re.escape(choice) for choice in letters), key=len, reverse=True)
        found = self._find("|".join(longest), _simplify(text))
        return letters.get(found, found)

    def _find_letter(self, text: str) -> str:
        names = "|".join(name for name, _ in self._named())
        found = self._find(rf":[\s]*({names})", text)
        return f"({found})" if found else NOTHING

    def _named(self) -> list[tuple[str, str]]:
        return [(chr(ord("A") + number), choice) for number, choice in enumerate(self.choices)]

    def _find(self, pattern: str, text: str) -> str:
        found: list[str] = re.findall(pattern, text)
        return found[-self.last].strip() if found else ""


def _simplify(text: str) -> str:
    return text.lower().translate(_list_punctuation())


@dataclass(frozen=True, slots=True)
class PhraseFinder:
    """The value of the phrase that an answer holds, by a pattern for each value; case is ignored.

    Where phrases of several values begin at the same place, the earlier pattern counts.
    """

    patterns: Mapping[str, str]
    last: bool = False

    def apply(self, text: str) -> str:
        found = list(re.finditer("|".join(self.patterns), text.lower()))
        if not found:
            return NOTHING
        phrase = found[-self.last][0]
        return next(value for pattern, value in self.patterns.items() if re.search(pattern, phrase))


@dataclass(frozen=True, slots=True)
class WordOrder:
    """The given words in the order in which an answer holds them, each where it stands last."""

    words: Sequence[str]

    def apply(self, text: str) -> str:
        words = "|".join(rf"\b{re.escape(word)}\b" for word in self.words)
        found: list[str] = re.findall(words, text)
        return " ".join(reversed(dict.fromkeys(reversed(found))))


_SMALL = {
    "zero": 0,
    "one": 1,
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "eleven": 11,
    "twelve": 12,
    "thirteen": 13,
    "fourteen": 14,
    "fifteen": 15,
    "sixteen": 16,
    "seventeen": 17,
    "eighteen": 18,
    "nineteen": 19,
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "seventy": 70,
    "eighty": 80,
    "ninety": 90,
}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_WORD = "|".join(sorted([*_SMALL, *_SCALES, "hundred"], key=len, reverse=True))
_NUMBER = re.compile(rf"(?:{_WORD})(?:(?:[^\S\r\n]|,|and|&|-)*(?:{_WORD}))*")


@dataclass(frozen=True, slots=True)
class NumberFinder:
    """The number in digits, or where there is none the number in English words."""

    last: bool = False

    def apply(self, text: str) -> str:
        digits = Regex(r"([-0-9]+)", match="last" if self.last else "first", fallback="")
        if found := digits.apply(text):
            return found
        named = _NUMBER.findall(text.lower())
        return str(_read_number(named[-self.last])) if named else NOTHING


def _read_number(text: str) -> int:
    whole = part = 0
    for word in re.findall(_WORD, text):
        if word in _SCALES:
            whole, part = whole + (part or 1) * _SCALES[word], 0
        elif word == "hundred":
            part = (part or 1) * 100
        else:
            part += _SMALL[word]
    return whole + part
