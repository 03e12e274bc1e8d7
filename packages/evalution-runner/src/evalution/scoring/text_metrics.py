"""Metrics of a text by its target: the ways in which a suite that generates may judge an answer.

Also the near misses of an exact match: a score that is low for the form of its answers alone.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

from pydantic import Field

from evalution.hints import import_extra
from evalution.scoring.patterns import check_pattern, find_match
from evalution.scoring.steps import Step, StepKinds
from evalution_core import ConfigurationError

NOTHING = "[none]"
"""In place of a part that an answer doesn't have."""


@runtime_checkable
class TextMetric(Protocol):
    """Judges an answer by its row's target; filters have run on both.

    `name` is the one in results. A row's worth goes from 0 to `largest`, and a suite's is the mean
    of its rows'.
    """

    name: ClassVar[str]
    largest: ClassVar[float]

    def check_target(self, target: str) -> None:
        """Raise `ConfigurationError` for a target that no answer could be judged by."""
        ...

    def extract(self, answer: str) -> str:
        """The part of an answer that counts."""
        ...

    def grade(self, found: str, target: str) -> float:
        """The worth of what `extract` took."""
        ...


@dataclass(frozen=True)
class MetricStep(Step):
    """Base of the metrics that a spec names: every target will do, and the whole answer counts."""

    declared_as: ClassVar[str] = "metric"
    largest: ClassVar[float] = 1.0

    def check_target(self, target: str) -> None:
        return

    def extract(self, answer: str) -> str:
        return answer


@dataclass(frozen=True)
class ExactMatch(MetricStep):
    """The answer is the target, character by character."""

    name: ClassVar[str] = "exact_match"

    def grade(self, found: str, target: str) -> float:
        return float(found == target)


@dataclass(frozen=True)
class Contains(MetricStep):
    """The target stands in the answer, and not within a longer word or number: 7 isn't in 17."""

    name: ClassVar[str] = "contains"

    ignore_case: Annotated[
        bool, Field(description="Take capital and small letters for the same.")
    ] = True

    def check_target(self, target: str) -> None:
        if not target:
            raise ConfigurationError("the target is empty, and every answer contains that")

    def grade(self, found: str, target: str) -> float:
        if self.ignore_case:
            found, target = found.casefold(), target.casefold()
        at = found.find(target)
        while at >= 0:
            before, after = found[:at], found[at + len(target) :]
            if not (_is_joined(before, target) or _is_joined(target, after)):
                return 1.0
            at = found.find(target, at + 1)
        return 0.0


_IN_NUMBER = (".", ",", "/")
_MINUSES = ("-", "−", "–")


def _is_joined(before: str, after: str) -> bool:
    """Report whether a word or a number goes on from one text to the next.

    Scripts without capital letters aren't asked: most have no spaces either, or join small words.
    """
    left, right = before[-1:], after[:1]
    if left.isdigit() and right in _IN_NUMBER:
        return after[1:2].isdigit()
    if right.isdigit() and left in _IN_NUMBER:
        return before[-2:-1].isdigit()
    if right.isdigit() and left in _MINUSES:
        return not before[-2:-1].isalnum()
    if left.isdigit() or right.isdigit():
        return left.isdigit() and right.isdigit()
    return left.lower() != left.upper() and right.lower() != right.upper()


_NUMBER = re.compile(
    r"(?<!\w)(?<!\d\.)[-+]?"
    r"(?:(?<![/\d])\d+/0*[1-9]\d*(?![/\d])"  # 1/2, but no part of 24/12/2026
    r"|(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|(?<!\.)\.\d+)(?:[eE][-+]?\d{1,3}(?!\d))?)"
)
_MINUS = str.maketrans(dict.fromkeys(_MINUSES, "-"))
_SIGNED_CURRENCY = re.compile(r"([-+])\s?([$€£¥])")
_SPACED_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|\\[,!]|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))")
_PART = re.compile(r"(?:[\^_}]|\\[dt]?frac|\\sqrt)\s*\{?\s*$")
"""In front of an exponent, an index, and a number in a fraction or a root."""
_JOINED = re.compile(r"(?<=\d[^\w\s=#])|(?<=\d\s)(?=\d{3}(?!\d))")
"""At the rest of a number that a letter is glued to: EUR1,000."""
_GOES_ON = re.compile(r"\A\w*\d|(?<!\w)[\d²³¹¼-¾⁰-₉⅐-⅟]")
"""Behind a number: more digits in its word, as in 12h30, or a number that isn't read, as ½."""


@dataclass(frozen=True)
class Number(MetricStep):
    """The answer's last number equals the target's: 1,234.0 is 1234, and 1/2 is 0.5."""

    name: ClassVar[str] = "number"

    tolerance: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="Difference that counts as equal.")
    ] = 0.0

    def check_target(self, target: str) -> None:
        if _parse_number(self.extract(target)) is None:
            raise ConfigurationError(f"the target {target!r} holds no number")
        plain = _write_plainly(target)
        *others, last = _NUMBER.finditer(plain)
        before = plain[others[-1].end() if others else 0 : last.start()]
        is_apart = not others or any(sign.isalpha() or sign in "=#" for sign in before)
        after = plain[last.end() :]
        is_part = _PART.search(before) or _JOINED.match(plain, last.start())
        if not is_apart or is_part or after[:1].isnumeric() or _GOES_ON.search(after):
            raise ConfigurationError(
                f"the target {target!r} is read as several numbers, of which {last[0]} would count "
                "alone; write one, as in 3.14, 1000 or 5/2, or compare texts by exact_match or "
                "contains"
            )

    def extract(self, answer: str) -> str:
        found = _NUMBER.findall(_write_plainly(answer))
        return found[-1] if found else NOTHING

    def grade(self, found: str, target: str) -> float:
        if (one := _parse_number(found)) is None:
            return 0.0
        other = _parse_number(self.extract(target))
        if other is None or not self.tolerance:
            return float(one == other)
        return float(abs(one - other) <= Fraction(str(self.tolerance)))


def _write_plainly(text: str) -> str:
    plain = _SIGNED_CURRENCY.sub(r"\2\1", text.translate(_MINUS))
    return _SPACED_THOUSANDS.sub(",", plain)


def _parse_number(text: str) -> Fraction | None:
    try:
        return Fraction(text.replace(",", ""))
    except ValueError:  # no number, or one of more digits than Python reads
        return None


_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True)
class TokenF1(MetricStep):
    """Words that answer and target share (SQuAD's F1): case, articles, punctuation don't count."""

    name: ClassVar[str] = "f1"

    def grade(self, found: str, target: str) -> float:
        answered, right = _split_words(found), _split_words(target)
        shared = (Counter(answered) & Counter(right)).total()
        if not answered or not right:
            return float(answered == right)
        return 2 * shared / (len(answered) + len(right))


def _split_words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


class _Words:
    """A tokenizer for rouge-score, whose own drops all letters but a to z."""

    _pattern = re.compile(r"[^\W_]+")

    def tokenize(self, text: str) -> list[str]:
        return self._pattern.findall(text.lower())


@dataclass(frozen=True)
class RougeL(MetricStep):
    """Words in the same order: ROUGE-L, unstemmed, by rouge-score (extra text)."""

    name: ClassVar[str] = "rouge_l"

    def __post_init__(self) -> None:
        super().__post_init__()
        _load_rouge()

    def grade(self, found: str, target: str) -> float:
        return float(_load_rouge().score(target, found)["rougeL"].fmeasure)


@cache
def _load_rouge() -> Any:
    module = import_extra("rouge_score.rouge_scorer", "text", "metric rouge_l", "rouge-score")
    return module.RougeScorer(["rougeL"], tokenizer=_Words())


@dataclass(frozen=True)
class ChrF(MetricStep):
    """Shared runs of characters: chrF, 0 to 100, by sacreBLEU for each row (extra text)."""

    name: ClassVar[str] = "chrf"
    largest: ClassVar[float] = 100.0

    word_order: Annotated[
        int, Field(ge=0, le=8, description="Runs of words that count too; 2 is chrF++.")
    ] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _load_chrf(self.word_order)

    def grade(self, found: str, target: str) -> float:
        return float(_load_chrf(self.word_order).sentence_score(found, [target]).score)


@cache
def _load_chrf(word_order: int) -> Any:
    module = import_extra("sacrebleu.metrics", "text", "metric chrf", "sacrebleu")
    return module.CHRF(word_order=word_order)


@dataclass(frozen=True)
class EditSimilarity(MetricStep):
    """Share of characters that need no change: Levenshtein, by rapidfuzz (extra text)."""

    name: ClassVar[str] = "edit_similarity"

    def __post_init__(self) -> None:
        super().__post_init__()
        _load_levenshtein()

    def grade(self, found: str, target: str) -> float:
        return float(_load_levenshtein().normalized_similarity(found, target))


@cache
def _load_levenshtein() -> Any:
    module = import_extra("rapidfuzz.distance", "text", "metric edit_similarity", "rapidfuzz")
    return module.Levenshtein


_ALONE = re.compile(r"[\W_]*([A-Za-z])[\W_]*")
_OPEN = r"[\s*_(\[\"'$\\]*+(?:\w++\{)?"
_LISTED = r"[)\]*]*(?:\s*[,/]|\s+(?:or|and)\b)\s*[(\[*]*[A-Z]\b(?! [a-z])"
_LETTER = rf"([A-Z])(?![\w&]|'\w|{_LISTED})(?!(?<=I) [a-z])"
_CHOSEN = rf"(?:\s+(?:is|would be|must be|should be))?)(?:[\s*_\"']*[:=])?{_OPEN}{_LETTER}"
_ANSWER = "Antwort|Respuesta|Réponse|Resposta|Risposta|Jawaban|Ответ|答案|回答|正解|정답|답"
_LETTERS = (
    re.compile(r"\\boxed\{(?:\\\w+\{)?[\W_]*([A-Z])[\W_]*\}"),
    re.compile(r"<answer>[\W_]*([A-Z])[\W_]*</answer>"),
    re.compile(rf"(?i:\b(?:answer|(?:best|correct|right) (?:option|choice)){_CHOSEN}"),
    re.compile(r"(?i:\b(?:answer is|answer:)\s*)([a-z])(?=[\W_]*(?:\n|\Z))"),
    re.compile(
        rf"(?i:{_ANSWER})\s*+(?:ist|es|est|é|è|adalah|是|は|는|은)?\s*+[:\uff1a]?{_OPEN}{_LETTER}"
    ),
    re.compile(r"\A[\W_]*([A-Z])(?:[.:,)\]*](?!.*\n\s*[A-Z][.:)\]])|\s*\n)"),
    re.compile(r"\A[\W_]*([A-Z])\s+[-–—]\s(?!\s*[A-Z]\b|.*\n\s*[A-Z]\s+[-–—]\s)"),  # no list
    re.compile(r"\A[\W_]*([a-z])[.:)\]](?!\w)"),
    re.compile(r"\b([A-Z]) is (?:the )?(?:best|correct|right)\b"),
    re.compile(rf"(?i:\b(?:option|choice){_CHOSEN}"),
    re.compile(rf"\b(?i:it(?:'s| is| must be)|so|solution:){_OPEN}{_LETTER}(?=[\W_]*(?:\n|\Z))"),
    re.compile(r"(?<!\bnot )(?<!n't )[(\[*]([A-Z])[)\]*]"),
)
"""Places where an answer names its choice, the surest first."""


@dataclass(frozen=True)
class ChoiceLetter(MetricStep):
    """The letter that the answer chooses is the target: "B", "(B) because", "the answer is B"."""

    name: ClassVar[str] = "choice_letter"

    def check_target(self, target: str) -> None:
        if not _ALONE.fullmatch(target):
            raise ConfigurationError(f"the target must be one letter, such as B, got {target!r}")

    def extract(self, answer: str) -> str:
        if alone := _ALONE.fullmatch(answer):
            return alone[1].upper()
        for pattern in _LETTERS:
            if found := pattern.findall(answer):
                return str(found[-1]).upper()
        return NOTHING

    def grade(self, found: str, target: str) -> float:
        return float(found == self.extract(target))


@dataclass(frozen=True)
class RegexMatch(MetricStep):
    """A regular expression matches somewhere in the answer: `pattern`, or else the row's target."""

    name: ClassVar[str] = "regex"

    pattern: Annotated[
        str | None,
        Field(
            min_length=1,
            description="Regular expression for all rows, as Python's re takes it; None takes each "
            "row's target as one.",
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pattern is not None:
            check_pattern("metric regex", self.pattern)

    def check_target(self, target: str) -> None:
        if self.pattern is None:
            if not target:
                raise ConfigurationError("the target is empty, and every answer matches that")
            check_pattern("metric regex", target)

    def grade(self, found: str, target: str) -> float:
        return float(find_match(self.pattern or target, found) is not None)


TEXT_METRICS: StepKinds[TextMetric] = StepKinds(
    "metric",
    {
        kind.name: kind
        for kind in (
            ExactMatch,
            Contains,
            Number,
            ChoiceLetter,
            RegexMatch,
            TokenF1,
            RougeL,
            ChrF,
            EditSimilarity,
        )
    },
    TextMetric,
)


RIGHT = "are right"
_AFTER_STRIP = "after strip (add it to filters and target_filters)"
_AFTER_LOWER = "after strip and lower (add them to filters and target_filters)"
_UP_TO = {
    "\n\n": r'up to the first blank line (stop: ["\n\n"])',
    "\n": r'up to the first line break (stop: ["\n"])',
}
_BY_NUMBER = "by their last number (metrics: [number])"
NO_NUMBER = "have a target that number refuses"
NEAR_MISSES = (_AFTER_STRIP, _AFTER_LOWER, *_UP_TO.values(), _BY_NUMBER)
"""Remarks about a wrong answer, the smallest change first."""
ENDS = tuple(_UP_TO)
"""Texts behind which a model may go on with a question of its own."""

_LAST_NUMBER = Number()
_WORTH_SAYING = 0.1
"""Share of the rows that a change must win."""


def find_near_misses(answer: str, target: str, heads: Sequence[str]) -> list[str]:
    """The changes that would make a wrong answer equal its target.

    `heads` are the answer up to each of `ENDS`; filters have run on all.
    """
    one, other = answer.strip(), target.strip()
    won = (
        one == other,
        one.lower() == other.lower(),
        *(head == target for head in heads),
        bool(_LAST_NUMBER.grade(_LAST_NUMBER.extract(answer), target)),
    )
    return [change for change, is_right in zip(NEAR_MISSES, won, strict=True) if is_right]


def find_runs_on(worth: float, heads: Sequence[float]) -> list[str]:
    """The remark on an answer; `heads` are the worths of its parts up to each of `ENDS`."""
    if worth:
        return [RIGHT]
    return [_UP_TO[end] for end, value in zip(ENDS, heads, strict=True) if value]


def has_number(target: str) -> bool:
    """Report whether the metric number takes this target."""
    try:
        _LAST_NUMBER.check_target(target)
    except ConfigurationError:
        return False
    return True


def describe_near_misses(counts: Mapping[str, int], rows: int) -> Iterator[str]:
    """Yield one sentence if changes win a tenth of the rows or more: those that win the most.

    A change that wins a tenth more than a smaller one is named in addition to it.
    """
    right = reached = counts.get(RIGHT, 0)
    named: list[str] = []
    for change in NEAR_MISSES:
        would = right + counts.get(change, 0)
        if change == _BY_NUMBER and counts.get(NO_NUMBER):
            continue
        if would > reached and would - reached >= _WORTH_SAYING * rows:
            named.append(f"{would} would be {change}")
            reached = would
    if named:
        yield f"{right} of {rows} are right; {'; '.join(named)}"
