"""The 25 kinds of instructions of IFEval, each with a check that a program can make.

Zhou et al. 2023, arXiv:2311.07911, table 1, with the readings of lm-evaluation-harness 0.4.13. That
library draws an argument at random where a row has none or one that makes no sense; here such a row
is refused, and a "letter" that is none, such as #, is counted like any other character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

from evalution.hints import import_extra
from evalution.scoring.patterns import count_matches, find_match
from evalution_core import ConfigurationError
from evalution_core.plugins import did_you_mean

PURPOSE = "suite ifeval"
_OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_FENCES = ("```json", "```Json", "```JSON", "```")


class Instruction(NamedTuple):
    """One instruction of a prompt: its name, and the arguments of its check."""

    name: str
    arguments: tuple[Any, ...]

    def is_followed(self, answer: str) -> bool:
        """Return whether an answer does what is asked; an empty one never does."""
        return bool(answer.strip()) and KINDS[self.name].check(answer, *self.arguments)


class Kind(NamedTuple):
    """The names of a kind's arguments in rows, and its check of an answer with their values."""

    arguments: tuple[str, ...]
    check: Callable[..., bool]


def parse_instructions(
    names: Sequence[str], arguments: Sequence[Mapping[str, Any]]
) -> list[Instruction]:
    """Return a row's instructions.

    Raises:
        ConfigurationError: a name is no kind, or an argument of it is missing or has a wrong value.
    """
    if len(names) != len(arguments):
        raise ConfigurationError(
            f"there are {len(names)} instructions and {len(arguments)} kwargs; each needs its own"
        )
    return [_parse_one(name, given) for name, given in zip(names, arguments, strict=True)]


def check_libraries(instructions: Sequence[Instruction]) -> None:
    """Load what these checks need; raises `ConfigurationError` with the line that installs it."""
    names = {instruction.name for instruction in instructions}
    if names & _BY_LANGUAGE:
        _detect_language()
    if names & _BY_SENTENCE:
        _load_punkt()


def list_loose_answers(answer: str) -> list[str]:
    """Return an answer without its first line, its last, both or none, and those without `*`."""
    lines = answer.split("\n")
    cut = ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    return [form for text in (answer, *cut) for form in (text, text.replace("*", ""))]


def _parse_one(name: str, given: Mapping[str, Any]) -> Instruction:
    if name not in KINDS:
        raise ConfigurationError(
            f"there is no instruction {name!r}{did_you_mean(name, KINDS)} "
            f"(instructions: {', '.join(KINDS)})"
        )
    found: list[Any] = []
    for argument in KINDS[name].arguments:
        value, (possible, is_right) = given.get(argument), _find_values(argument)
        if not is_right(value):
            raise ConfigurationError(
                f"instruction {name!r} needs {argument!r} in kwargs, got {value!r}; "
                f"possible: {possible}"
            )
        found.append(value)
    return Instruction(name, tuple(found))


def _find_values(argument: str) -> tuple[str, Callable[[Any], bool]]:
    """Return the values that an argument may have, in words and as a test."""
    if argument.endswith("relation"):
        return ", ".join(_RELATIONS), lambda value: value in _RELATIONS
    if argument in ("keywords", "forbidden_words"):
        return (
            "a list of texts",
            lambda value: (
                isinstance(value, list)
                and all(isinstance(word, str) for word in cast("Any", value))
            ),
        )
    if argument.startswith(("num_", "nth_")) or argument.endswith("frequency"):
        return (
            "a whole number",
            lambda value: (
                not isinstance(value, bool) and isinstance(value, int | float) and value % 1 == 0
            ),
        )
    return "a text", lambda value: isinstance(value, str)


_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "less than": lambda found, asked: found < asked,
    "at least": lambda found, asked: found >= asked,
}


def _has_keywords(answer: str, keywords: Sequence[str]) -> bool:
    return all(find_match(word, answer, ignore_case=True) for word in keywords)


def _has_no_keywords(answer: str, keywords: Sequence[str]) -> bool:
    return not any(find_match(rf"\b{word}\b", answer, ignore_case=True) for word in keywords)


def _repeats_keyword(answer: str, keyword: str, count: int, relation: str) -> bool:
    found = count_matches(keyword.strip(), answer, ignore_case=True)
    return _RELATIONS[relation](found, count)


def _repeats_letter(answer: str, letter: str, count: int, relation: str) -> bool:
    return _RELATIONS[relation](answer.lower().count(letter.strip().lower()), count)


def _is_in_language(answer: str, language: str) -> bool:
    detect, no_language = _detect_language()
    try:
        return detect(answer) == language
    except no_language:  # digits alone, say
        return True


def _is_in_capitals(answer: str) -> bool:
    return answer.isupper() and _is_in_language(answer, "en")


def _is_in_small_letters(answer: str) -> bool:
    return answer.islower() and _is_in_language(answer, "en")


def _has_sentences(answer: str, count: int, relation: str) -> bool:
    return _RELATIONS[relation](len(_load_punkt().tokenize(answer)), count)


def _has_words(answer: str, count: int, relation: str) -> bool:
    return _RELATIONS[relation](len(re.findall(r"\w+", answer)), count)


def _has_capital_words(answer: str, count: int, relation: str) -> bool:
    _load_punkt()
    words = import_extra("nltk", "ifeval", PURPOSE, "nltk").word_tokenize(answer)
    return _RELATIONS[relation](sum(word.isupper() for word in words), count)


def _has_paragraphs(answer: str, count: int) -> bool:
    paragraphs = re.split(r"\s?\*\*\*\s?", answer)
    within = paragraphs[1:-1]
    ends = [paragraphs[0], *paragraphs[1:][-1:]]
    return all(text.strip() for text in within) and count == len(within) + sum(
        bool(text.strip()) for text in ends
    )


def _begins_paragraph(answer: str, count: int, number: int, word: str) -> bool:
    paragraphs = answer.split("\n\n")
    if number > sum(bool(text.strip()) for text in paragraphs):
        return False
    words = paragraphs[number - 1].split()
    first = re.split("[.,?!'\"]", words[0].lstrip("'").lstrip('"').lower())[0] if words else None
    return first == word.lower() and count == sum(bool(text.strip()) for text in paragraphs)


def _has_placeholders(answer: str, count: int) -> bool:
    return len(re.findall(r"\[.*?\]", answer)) >= count


def _has_postscript(answer: str, marker: str) -> bool:
    spelt = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    pattern = spelt.get(marker.strip(), marker.strip().lower())
    return find_match(pattern, answer.lower()) is not None


def _has_bullets(answer: str, count: int) -> bool:
    starred = re.findall(r"^\s*\*[^\*].*$", answer, re.MULTILINE)
    return len(starred) + len(re.findall(r"^\s*-.*$", answer, re.MULTILINE)) == count


def _is_an_option(answer: str) -> bool:
    return any(option in answer for option in _OPTIONS)


def _has_highlights(answer: str, count: int) -> bool:
    single = [text.strip("*") for text in re.findall(r"\*[^\n\*]*\*", answer)]
    double = re.findall(r"\*\*([^\n\*]*)\*\*", answer)
    return sum(bool(text.strip()) for text in (*single, *double)) >= count


def _has_sections(answer: str, mark: str, count: int) -> bool:
    return count_matches(rf"\s?{mark.strip()}\s?\d+\s?", answer) >= count


def _is_json(answer: str) -> bool:
    text = answer.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _has_title(answer: str) -> bool:
    found = re.findall(r"<<[^\n]+>>", answer)
    return any(title.lstrip("<").rstrip(">").strip() for title in found)


def _has_two_answers(answer: str) -> bool:
    first, *others = answer.split("******")
    if not all(text.strip() for text in others[:-1]):
        return False
    written = [text.strip() for text in (first, *others) if text.strip()]
    return len(written) == 2 and written[0] != written[1]


def _repeats_prompt(answer: str, prompt: str) -> bool:
    return answer.strip().lower().startswith(prompt.strip().lower())


def _ends_with(answer: str, phrase: str) -> bool:
    return answer.strip().strip('"').lower().endswith(phrase.strip().lower())


def _has_no_comma(answer: str) -> bool:
    return "," not in answer


def _is_quoted(answer: str) -> bool:
    text = answer.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


KINDS: dict[str, Kind] = {
    "keywords:existence": Kind(("keywords",), _has_keywords),
    "keywords:frequency": Kind(("keyword", "frequency", "relation"), _repeats_keyword),
    "keywords:forbidden_words": Kind(("forbidden_words",), _has_no_keywords),
    "keywords:letter_frequency": Kind(("letter", "let_frequency", "let_relation"), _repeats_letter),
    "language:response_language": Kind(("language",), _is_in_language),
    "length_constraints:number_sentences": Kind(("num_sentences", "relation"), _has_sentences),
    "length_constraints:number_paragraphs": Kind(("num_paragraphs",), _has_paragraphs),
    "length_constraints:number_words": Kind(("num_words", "relation"), _has_words),
    "length_constraints:nth_paragraph_first_word": Kind(
        ("num_paragraphs", "nth_paragraph", "first_word"), _begins_paragraph
    ),
    "detectable_content:number_placeholders": Kind(("num_placeholders",), _has_placeholders),
    "detectable_content:postscript": Kind(("postscript_marker",), _has_postscript),
    "detectable_format:number_bullet_lists": Kind(("num_bullets",), _has_bullets),
    "detectable_format:constrained_response": Kind((), _is_an_option),
    "detectable_format:number_highlighted_sections": Kind(("num_highlights",), _has_highlights),
    "detectable_format:multiple_sections": Kind(("section_spliter", "num_sections"), _has_sections),
    "detectable_format:json_format": Kind((), _is_json),
    "detectable_format:title": Kind((), _has_title),
    "combination:two_responses": Kind((), _has_two_answers),
    "combination:repeat_prompt": Kind(("prompt_to_repeat",), _repeats_prompt),
    "startend:end_checker": Kind(("end_phrase",), _ends_with),
    "startend:quotation": Kind((), _is_quoted),
    "change_case:capital_word_frequency": Kind(
        ("capital_frequency", "capital_relation"), _has_capital_words
    ),
    "change_case:english_capital": Kind((), _is_in_capitals),
    "change_case:english_lowercase": Kind((), _is_in_small_letters),
    "punctuation:no_comma": Kind((), _has_no_comma),
}
_BY_LANGUAGE = {
    "language:response_language",
    "change_case:english_capital",
    "change_case:english_lowercase",
}
_BY_SENTENCE = {"length_constraints:number_sentences", "change_case:capital_word_frequency"}


@cache
def _detect_language() -> tuple[Callable[[str], str], type[Exception]]:
    library = import_extra("langdetect", "ifeval", PURPOSE, "langdetect")
    # It draws at random: with a seed the same text has the same language on every run.
    library.DetectorFactory.seed = 0
    return cast("Callable[[str], str]", library.detect), library.LangDetectException


@cache
def _load_punkt() -> Any:
    punkt = import_extra("nltk.tokenize.punkt", "ifeval", PURPOSE, "nltk")
    try:
        return punkt.PunktTokenizer("english")
    except LookupError:
        raise ConfigurationError(
            f"{PURPOSE} splits sentences by NLTK's model, which isn't here; "
            "python -m nltk.downloader punkt_tab"
        ) from None
