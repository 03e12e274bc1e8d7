"""Instructions of IFEval: what is read from rows, and the loose forms of an answer."""

from __future__ import annotations

import pytest

from evalution.scoring import patterns
from evalution.scoring.instructions import Instruction, list_loose_answers, parse_instructions
from evalution_core import ConfigurationError


def test_a_loose_answer_may_lose_its_ends_and_its_stars() -> None:
    assert list_loose_answers("*a*\nb\nc") == [
        "*a*\nb\nc",
        "a\nb\nc",
        "b\nc",
        "b\nc",
        "*a*\nb",
        "a\nb",
        "b",
        "b",
    ]


def test_a_letter_that_is_none_is_counted() -> None:
    (hashes,) = parse_instructions(
        ["keywords:letter_frequency"],
        [{"letter": "#", "let_frequency": 2, "let_relation": "at least", "keywords": None}],
    )
    assert (hashes.is_followed("# #"), hashes.is_followed("#")) == (True, False)
    assert not Instruction("punctuation:no_comma", ()).is_followed(" ")
    assert not Instruction("detectable_format:json_format", ()).is_followed("[" * 100_000)


@pytest.mark.parametrize(
    ("names", "arguments", "message"),
    [
        (["punctuation:no_comas"], [{}], "did you mean 'punctuation:no_comma'"),
        (["startend:end_checker"], [{}], "needs 'end_phrase' in kwargs, got None"),
        (
            ["length_constraints:number_words"],
            [{"num_words": 3, "relation": "at most"}],
            "needs 'relation' in kwargs, got 'at most'; possible: less than, at least",
        ),
        (["keywords:existence"], [{"keywords": "cat"}], "got 'cat'; possible: a list of texts"),
        (
            ["length_constraints:number_words"],
            [{"num_words": "300", "relation": "at least"}],
            "needs 'num_words' in kwargs, got '300'; possible: a whole number",
        ),
        (["punctuation:no_comma"], [], "there are 1 instructions and 0 kwargs"),
    ],
)
def test_a_row_that_no_check_fits_is_refused(
    names: list[str], arguments: list[dict[str, object]], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_instructions(names, arguments)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("keywords:existence", {"keywords": ["(a|a)*$"]}),
        ("keywords:forbidden_words", {"forbidden_words": ["(a|a)*$"]}),
        ("keywords:frequency", {"keyword": "(a|a)*$", "frequency": 1, "relation": "at least"}),
        ("detectable_content:postscript", {"postscript_marker": "(a|a)*$"}),
        (
            "detectable_format:multiple_sections",
            {"section_spliter": "(a|a)*$", "num_sections": 1},
        ),
    ],
)
def test_pattern_of_a_row_that_runs_on_is_stopped(
    monkeypatch: pytest.MonkeyPatch, name: str, given: dict[str, object]
) -> None:
    monkeypatch.setattr(patterns, "TIME_LIMIT_S", 0.02)
    (instruction,) = parse_instructions([name], [given])
    with pytest.raises(TimeoutError, match=r"takes more than 0\.02 s on a text of 41 characters"):
        instruction.is_followed("a" * 40 + "!")
