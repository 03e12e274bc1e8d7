from __future__ import annotations

import re
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.scoring import patterns
from evalution.scoring.filters import (
    FirstLine,
    Lower,
    Regex,
    Replace,
    Strip,
    apply_filters,
    filters_to_yaml,
    parse_filters,
)
from evalution.suites.tasks.gsm8k import GSM8K, GSM8KCoT, GSM8KCoTLlama
from evalution_core import ConfigurationError


@pytest.mark.parametrize(
    ("step", "text", "taken"),
    [
        (Regex("#### (-?[0-9]+)"), "2 + 2 = 4\n#### 4", "4"),
        (Regex("[0-9]+"), "1 then 2", "1"),
        (Regex("[0-9]+", match="last"), "1 then 2", "2"),
        (Regex("(a)|(b)"), "xb", "b"),
        (Regex("x(a?)"), "x", ""),
        (Regex("a|(b)"), "a", ""),
        (Regex("(a)?(b)?c"), "c", "[invalid]"),
        (Regex("(a)|(b)", match="last"), "a b a b", "b"),
        (Regex("(a) (?P<right>b)", group="right"), "a b", "b"),
        (Regex("(a) (b)", group=0), "-a b-", "a b"),
        (Regex("x( .*)"), "x  spaced  ", "spaced"),
        (Regex("[0-9]+"), "none", "[invalid]"),
        (Regex("[0-9]+", fallback=""), "none", ""),
        (Replace("[.,]"), "1,000.", "1000"),
        (Replace("a(.)", r"\1"), "ab", "b"),
        (Strip(), " x \n", "x"),
        (Lower(), "Yes", "yes"),
        (FirstLine(), "a\nb", "a"),
    ],
)
def test_a_step_takes_what_it_says(step: Any, text: str, taken: str) -> None:
    assert step.apply(text) == taken


def test_steps_run_in_order() -> None:
    assert apply_filters([FirstLine(), Strip(), Lower()], " YES \nno") == "yes"


@given(st.text())
def test_no_step_changes_nothing(text: str) -> None:
    assert apply_filters([], text) == text


def test_both_forms_of_a_step_are_the_same() -> None:
    long = [{"regex": {"pattern": "a", "match": "last"}}, {"strip": {}}, "lower"]
    assert parse_filters(long) == [Regex("a", match="last"), Strip(), Lower()]
    assert parse_filters({"regex": "a"}) == parse_filters([{"regex": "a"}]) == [Regex("a")]
    assert parse_filters("strip") == parse_filters({"strip": None}) == [Strip()]
    assert parse_filters([Regex("a"), "strip"]) == [Regex("a"), Strip()]


def test_pipelines_have_names() -> None:
    assert parse_filters({"strict": [{"regex": "a"}], "loose": ["lower"]}) == {
        "strict": [Regex("a")],
        "loose": [Lower()],
    }


def test_a_pipeline_of_one_step_needs_no_list() -> None:
    assert parse_filters({"strict": "strip"}) == {"strict": [Strip()]}
    assert parse_filters({"strict": {"regex": "a"}}) == {"strict": [Regex("a")]}
    assert parse_filters({"strict": Strip()}) == {"strict": [Strip()]}


@pytest.mark.parametrize("pattern", ["(?i)a", "(?x)a # comment", "a|", "[|]", "(?P<n>a)"])
def test_any_replacement_of_plain_text_is_taken(pattern: str) -> None:
    assert Replace(pattern, "b").by == "b"


def test_what_is_shown_can_be_declared_again() -> None:
    declared = parse_filters({"strict": [{"regex": {"pattern": "a", "group": 0}}, "strip"]})
    assert parse_filters(filters_to_yaml(declared)) == declared


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (["lowercase"], "there is no filter 'lowercase'; did you mean 'lower'?"),
        ([{"regex": {"patern": "a"}}], "has no option 'patern'; did you mean 'pattern'?"),
        ([{"regex": {}}], "filter regex needs a pattern"),
        ([{"regex": "(a"}], "'(a' is no regular expression"),
        ([{"replace": "(a"}], "'(a' is no regular expression"),
        ([{"replace": {"pattern": "a", "by": "\\1"}}], "invalid group reference 1"),
        ([{"replace": {"pattern": "a", "by": "\\g<x>"}}], "can't replace a match of 'a': "),
        ([{"replace": {"pattern": "a", "by": "\\q"}}], "a backslash of the text itself is written"),
        ([{"regex": "a{99999999999999999999}"}], "is no regular expression"),
        ([{"regex": {"pattern": "a", "match": "second"}}], "must be 'first' or 'last'"),
        ([{"regex": {"pattern": "a", "group": 2}}], "'a' has no group 2 (groups: 0)"),
        ([{"regex": 4}], "option 'pattern' of filter Regex must be a string, got 4"),
        ([{"strip": "x"}], "filter strip has no options, got 'x'"),
        ([3], "a filter is a name or one name with its options, got 3"),
        ([{"strip": {}, "lower": {}}], "a filter is a name or one name with its options"),
    ],
)
def test_a_wrong_declaration_says_what_there_is(declared: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_filters(declared)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "step", [Regex("(a|a)*$"), Regex("(a|a)*$", match="last"), Replace("(a|a)*$")]
)
def test_pattern_that_runs_on_is_stopped_and_named(
    step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "TIME_LIMIT_S", 0.02)
    with pytest.raises(TimeoutError) as caught:
        step.apply("a" * 40 + "!")
    assert str(caught.value).startswith(
        "the pattern '(a|a)*$' takes more than 0.02 s on a text of 41 characters"
    )


_PATTERNS = [
    step.pattern
    for suite in (GSM8K, GSM8KCoT, GSM8KCoTLlama)
    for step in [*chain.from_iterable(suite.pipelines.values()), *suite.reference_filters]
    if isinstance(step, Regex | Replace)
]


@given(
    st.sampled_from(_PATTERNS),
    st.lists(st.sampled_from(["#### ", "The answer is ", "-", "$", "1,2", ".", "7", "\n", "é"])),
)
def test_patterns_of_the_named_suites_match_as_in_python(pattern: str, parts: list[str]) -> None:
    text = "".join(parts)
    for last in (False, True):
        found = patterns.find_match(pattern, text, last=last)
        matches = list(re.finditer(pattern, text))
        if not matches:
            assert found is None
            continue
        assert found is not None
        wanted = matches[-1 if last else 0]
        assert (found.span(), found.groups()) == (wanted.span(), wanted.groups())
    assert patterns.replace_matches(pattern, "<>", text) == re.sub(pattern, "<>", text)


LITERAL_BRACES = [
    *(r"\\hat{i}", r"f{e}", r"\d{e}", r"\\frac{d}{dx}", r"e^{i\\pi}", r"x{1,2}", r"x{,2}", r"x{}"),
    *(r"\\boxed{(.+?)}", r"[{}]", r"\{", r"\N{DIGIT ONE}{2}"),
]
TEXT_PARTS = ["\\hat{", "\\frac{", "\\boxed{", "i", "}", "x", "e^", "{d", "f", "1"]


@given(st.sampled_from(LITERAL_BRACES), st.lists(st.sampled_from(TEXT_PARTS)))
def test_braces_of_the_text_itself_match_as_in_python(pattern: str, parts: list[str]) -> None:
    text = "".join(parts)
    found, wanted = patterns.find_match(pattern, text), re.search(pattern, text)
    assert (found and found.span()) == (wanted and wanted.span())


def test_replacements_may_not_multiply_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "LONGEST_TEXT", 100)
    doubled = [Replace("(?s)(.+)", r"\1\1")]
    assert apply_filters(doubled, "x" * 50) == "x" * 100
    with pytest.raises(ValueError, match="makes more than 100 characters of a text of 51; a repl"):
        apply_filters(doubled, "x" * 51)


@pytest.mark.filterwarnings("ignore:bad character in group name", "ignore:Possible nested set")
def test_pattern_that_only_re_takes_says_how_to_write_it() -> None:
    with pytest.raises(
        ConfigurationError, match=r"is no regular expression to the library `regex`"
    ):
        Regex("[[:x:]]")
    with pytest.raises(ValueError, match=r"can't replace a match of '\(\)'"):  # 3.12: `re` neither
        Replace("()", "\\g<\t1>").apply("a")
