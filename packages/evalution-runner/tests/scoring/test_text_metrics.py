from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.scoring import text_metrics
from evalution.scoring.text_metrics import (
    RIGHT,
    TEXT_METRICS,
    ChoiceLetter,
    ChrF,
    Contains,
    EditSimilarity,
    MetricStep,
    Number,
    RegexMatch,
    RougeL,
    TextMetric,
    TokenF1,
    describe_near_misses,
    find_near_misses,
)
from evalution_core import ConfigurationError

pytest.importorskip("rouge_score", reason="needs evalution-runner[text]")
pytest.importorskip("sacrebleu", reason="needs evalution-runner[text]")
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu import sentence_chrf

plain = st.text("abc ABC 12.,'!-\n", max_size=40)


def grade(metric: TextMetric, answer: str, target: str) -> float:
    metric.check_target(target)
    return metric.grade(metric.extract(answer), target)


@pytest.mark.parametrize(
    ("answer", "target", "is_right"),
    [
        ("It is Paris.", "paris", True),
        ("In 1789 it began", "1789", True),
        ("17", "7", False),
        ("7.5 kg, 7kg", "7", True),
        ("7.5 kg", "7", False),
        ("7.5 kg", "5", False),
        ("1,500 people", "500", False),
        ("it is -7", "7", False),
        ("1/2", "2", False),
        ("3-7", "7", True),
        ("7. And", "7", True),
        ("-7", "-7", True),
        ("pineapples", "apple", False),
        ("apple-pie", "apple", True),
        ("l'eau", "eau", True),
        ("首都是巴黎。", "巴黎", True),
        ("STRASSE", "straße", True),
        ("(a) and (b)", "(b)", True),
        ("aa a", "a", True),
        ("", "a", False),
    ],
)
def test_contains_finds_whole_words_and_numbers(answer: str, target: str, is_right: bool) -> None:
    assert grade(Contains(), answer, target) == is_right


def test_contains_may_tell_cases_apart() -> None:
    assert grade(Contains(ignore_case=False), "paris", "Paris") == 0.0


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("3 + 4 = 7\n#### 7", "7"),
        ("it costs $1,234.50.", "1,234.50"),
        ("from 3-5", "5"),
        ("it is −4", "-4"),
        ("about 1e-5", "1e-5"),
        ("1e99999999999 grains", "1"),
        ("1/2 cup", "1/2"),
        ("on 24/12/2026", "2026"),
        ("that makes...8", "8"),
        ("v1.2.3 of x86", "[none]"),
        (".5", ".5"),
        ("12,34", "34"),
        ("the change is -$5.", "-5"),
        ("− €1,200", "-1,200"),
        (r"\boxed{1{,}000}", "1,000"),
        (r"1\,000\,000", "1,000,000"),
        ("1\u202f000", "1,000"),
        ("none", "[none]"),
    ],
)
def test_last_number_of_an_answer(answer: str, found: str) -> None:
    assert Number().extract(answer) == found


@pytest.mark.parametrize(
    ("answer", "target", "tolerance", "is_right"),
    [
        ("1,234.0 grams", "1234", 0.0, True),
        ("0.5", "1/2", 0.0, True),
        ("3/2", "1/2", 0.0, False),
        ("0.1", "0.10000000000000001", 0.0, False),
        ("3.14", "3.14159", 0.01, True),
        ("3.1", "3.14159", 0.01, False),
        ("many", "7", 0.0, False),
        ("9" * 5000, "7", 0.0, False),
    ],
)
def test_numbers_are_compared_as_numbers(
    answer: str, target: str, tolerance: float, is_right: bool
) -> None:
    assert grade(Number(tolerance), answer, target) == is_right


@given(st.integers(-(10**12), 10**12), st.integers(0, 6))
def test_every_spelling_of_a_number_is_that_number(number: int, zeros: int) -> None:
    spelled = f"The sum is {number:,}.{'0' * zeros}"
    assert grade(Number(), spelled, str(number)) == 1.0


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        (" (b) ", "B"),
        ("B.", "B"),
        ("B) because A is wrong", "B"),
        ("**B**", "B"),
        ("B\nThat is why", "B"),
        ("A dog has four legs, so the answer is (C).", "C"),
        ("Answer: **D**", "D"),
        ("I'd say option B", "B"),
        ("so it must be (A), not (B); the answer is A", "A"),
        (r"$\boxed{B}$", "B"),
        (r"\boxed{\text{B}}", "B"),
        ("(B) because option A is wrong", "B"),
        ("B. Option A is wrong since it is", "B"),
        ("The answer is B. Option A is incorrect.", "B"),
        ("Answer: B\n\nChoice C is too large.", "B"),
        ("A) is wrong, so the correct option is C", "C"),
        ("The correct choice would be B", "B"),
        (r"The correct option is \(B\)", "B"),
        ("I think that B is correct", "B"),
        ("the answer is b", "B"),
        ("b) because it is", "B"),
        ("**Answer**: B", "B"),
        ('{"answer": "B"}', "B"),
        ("{'answer': 'B'}", "B"),
        ("Answer = B", "B"),
        ("B - Paris", "B"),
        ("**B** – it is Paris", "B"),
        ("A - Paris\nB - Rome\nI like it", "[none]"),
        ("I - I see", "[none]"),
        ("A -  B", "[none]"),
        ("A well-known dog", "[none]"),
        ("Answer: Brown", "[none]"),
        ("i.e. none of them", "[none]"),
        ("A dog", "[none]"),
        ("The answer is a dog", "[none]"),
        ("the answer is Berlin", "[none]"),
        ("I think so", "[none]"),
        ("", "[none]"),
        ("<answer>B</answer>", "B"),
        (r"The answer is \text{B}", "B"),
        ("A. Paris - no.\nB. London - yes.\n\nSo it's B.", "B"),
        ("A. Paris\nB. London", "[none]"),
        ("The answer must be B", "B"),
        ("答案是B", "B"),
        ("Die richtige Antwort ist B.", "B"),
        ("Respuesta: (B)", "B"),
        ("Solution: B", "B"),
        ("The answer is B, A is wrong", "B"),
        ("Answer: B or C", "[none]"),
        ("Answer: A, B", "[none]"),
        ("The correct answer is not (A).", "[none]"),
        ("Answer: I don't know", "[none]"),
        ("Answer: I", "I"),
        # Patterns take linear time, also of an answer that ends in thousands of spaces.
        *((f"{word}{' ' * 9000}x!", "[none]") for word in ("답", "Antwort ist", "so", "Answer")),
    ],
)
def test_letter_that_an_answer_chooses(answer: str, letter: str) -> None:
    assert ChoiceLetter().extract(answer) == letter
    assert grade(ChoiceLetter(), answer, "(B)") == (letter == "B")


@pytest.mark.parametrize(
    ("answer", "target", "score"),
    [
        ("The Eiffel Tower!", "eiffel tower", 1.0),
        ("in Paris, France", "Paris", 0.5),
        ("no", "yes", 0.0),
        ("", "yes", 0.0),
        ("the", "a", 1.0),
    ],
)
def test_f1_is_that_of_squad(answer: str, target: str, score: float) -> None:
    assert grade(TokenF1(), answer, target) == pytest.approx(score)


@given(plain, plain)
def test_library_metrics_are_their_libraries(answer: str, target: str) -> None:
    rouge = RougeScorer(["rougeL"]).score(target, answer)["rougeL"].fmeasure
    assert grade(RougeL(), answer, target) == rouge
    assert grade(ChrF(), answer, target) == sentence_chrf(answer, [target]).score
    assert 0.0 <= grade(EditSimilarity(), answer, target) <= 1.0


def test_library_metrics_read_every_script() -> None:
    assert grade(RougeL(), "Москва", "москва") == 1.0
    assert grade(ChrF(word_order=2), "Москва", "Москва") == pytest.approx(100.0)
    assert grade(EditSimilarity(), "Москва", "Москве") == pytest.approx(5 / 6)


def test_pattern_is_the_rows_target_or_one_for_all() -> None:
    assert grade(RegexMatch(), "It's Paris", "(?i)paris|city of light") == 1.0
    assert grade(RegexMatch(r"^\{.*\}$"), '{"a": 1}', "anything") == 1.0
    assert grade(RegexMatch(r"^\{.*\}$"), "a", "anything") == 0.0


@given(plain, plain)
def test_grades_lie_between_zero_and_the_largest(answer: str, target: str) -> None:
    for kind in TEXT_METRICS.kinds.values():
        metric: Any = kind()
        try:
            found = grade(metric, answer, target)
        except ConfigurationError:
            continue
        assert 0.0 <= found <= metric.largest


@pytest.mark.parametrize(
    ("metric", "target", "message"),
    [
        (Contains(), "", "the target is empty, and every answer contains that"),
        (RegexMatch(), "", "the target is empty, and every answer matches that"),
        (RegexMatch(), "(a", "metric regex: '(a' is no regular expression: "),
        (Number(), "seven", "the target 'seven' holds no number"),
        (ChoiceLetter(), "Paris", "the target must be one letter, such as B, got 'Paris'"),
    ],
)
def test_target_that_judges_nothing_is_refused(
    metric: TextMetric, target: str, message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        metric.check_target(target)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("target", "counted"),
    [
        ("3,14", "14"),
        ("-3,14", "14"),
        ("1.234,56 €", "56"),
        ("1.234.567", "1.234"),
        ("1'000", "000"),
        ("1 000", "000"),
        ("2 1/2", "1/2"),
        ("12:30", "30"),
        ("10^6", "6"),
        ("5²", "5"),
        ("12/0", "0"),
        ("(3, 4)", "4"),
        ("3,14 kg", "14"),
        ("1 000 EUR", "000"),
        ("2½ cups", "2"),
        (r"\frac{1}{2}", "2"),
        (r"2\sqrt{3}", "3"),
        ("5 m^2", "2"),
        ("72 (36*2)", "2"),
        ("1.234.567 people", "1.234"),
        ("EUR1,000", "000"),
        ("EUR1 000", "000"),
        ("at12:30", "30"),
        ("12h30", "12"),
        ("0x1F", "0"),
        ("1_000", "1"),
        ("5e1234", "5"),
        ("3万", "3"),
        ("7₂", "7"),
        ("(5)²", "5"),
        ("2 ½", "2"),
        ("2 and ½ cups", "2"),
    ],
)
def test_target_that_is_several_numbers_is_refused(target: str, counted: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Number().check_target(target)
    assert str(caught.value) == (
        f"the target {target!r} is read as several numbers, of which {counted} would count alone; "
        "write one, as in 3.14, 1000 or 5/2, or compare texts by exact_match or contains"
    )


@pytest.mark.parametrize(
    ("target", "number"),
    [
        ("4 * 18 = <<4*18=72>>72\n#### 72", "72"),
        ("3 + 4 = 7", "7"),
        ("#### 72", "72"),
        ("6 of 10, so 5.", "5"),
        ("1,234,567", "1234567"),
        ("1\u202f000", "1000"),
        (" -1/2 ", "-0.5"),
        ("$5.", "5"),
        ("1e-5", "0.00001"),
        ("小明有3个苹果,又买了9个。\n#### 12", "12"),
        ("小明后来又买了一些。\n#### 12", "12"),
        ("H2O on A4 paper.\n#### 12", "12"),
        ("in Q4 2023", "2023"),
        ("25 cm²", "25"),
        ("25cm²", "25"),
        ("in cm²: 25", "25"),
        ("H₂O: 18", "18"),
        ("3 eggs and ½ cup.\n#### 12", "12"),
        ("12个苹果,还有一些", "12"),
    ],
)
def test_target_of_one_number_or_with_a_last_one_is_that(target: str, number: str) -> None:
    assert grade(Number(), number, target) == 1.0


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("chrF", "there is no metric 'chrF'; did you mean 'chrf'?"),
        ({"number": -1.0}, "option 'tolerance' of metric Number must be at least 0"),
        ({"regex": ""}, "option 'pattern' of metric RegexMatch"),
        ({"regex": "(a"}, "metric regex: '(a' is no regular expression"),
        ({"contains": {"case": True}}, "metric Contains has no option 'case'"),
    ],
)
def test_wrong_metric_is_refused_with_what_there_is(declared: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TEXT_METRICS.parse(declared)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("rouge_l", "rouge_score.rouge_scorer", "rouge-score"),
        ("chrf", "sacrebleu.metrics", "sacrebleu"),
        ("edit_similarity", "rapidfuzz.distance", "rapidfuzz"),
    ],
)
def test_missing_extra_is_one_sentence(
    name: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for load in ("_load_rouge", "_load_chrf", "_load_levenshtein"):
        getattr(text_metrics, load).cache_clear()
    with pytest.raises(ConfigurationError) as caught:
        TEXT_METRICS.parse(name)
    assert str(caught.value) == (
        f"metric {name} needs {package}, which isn't installed; "
        "pip install 'evalution-runner[text]'"
    )


def test_small_changes_that_make_an_answer_right() -> None:
    strip, lower, paragraph, line, number = (
        "after strip (add it to filters and target_filters)",
        "after strip and lower (add them to filters and target_filters)",
        r'up to the first blank line (stop: ["\n\n"])',
        r'up to the first line break (stop: ["\n"])',
        "by their last number (metrics: [number])",
    )
    assert find_near_misses(" Yes", "Yes", (" Yes", " Yes")) == [strip, lower]
    assert find_near_misses("YES\n", "yes", ("YES\n", "YES")) == [lower]
    assert find_near_misses("3 + 4 = 7", "7", ("3 + 4 = 7", "3 + 4 = 7")) == [number]
    assert find_near_misses("no", "yes", ("no", "no")) == []
    assert find_near_misses("7\n8\n\n7", "7\n8", ("7\n8", "7")) == [paragraph]
    assert find_near_misses("a\nb\n\nc", "a", ("a\nb", "a")) == [line]
    assert [*describe_near_misses({strip: 60, lower: 60}, 60)] == [
        f"0 of 60 are right; 60 would be {strip}"
    ]
    assert [*describe_near_misses({RIGHT: 20, lower: 10, number: 40}, 100)] == [
        f"20 of 100 are right; 30 would be {lower}; 60 would be {number}"
    ]
    assert [*describe_near_misses({RIGHT: 90, lower: 9}, 100)] == []
    assert [*describe_near_misses({}, 0)] == []


@dataclass(frozen=True)
class Worth(MetricStep):
    """A metric of one's own."""

    name: ClassVar[str] = "worth"
    share: float = 0.5
    known: Any = ()

    def grade(self, found: str, target: str) -> float:
        return self.share


def test_metric_of_ones_own_is_recorded_with_its_options() -> None:
    """Or sides that differ in them alone would count as judged alike."""
    (shown,) = TEXT_METRICS.to_yaml([Worth(0.25)])
    assert shown == {f"<{__name__}.Worth>": {"share": 0.25, "known": "tuple"}}
