"""LAMBADA and WikiText: the last word of a passage, and whole articles."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.scoring.filters import apply_filters
from evalution.suites import load_suite
from evalution.suites.tasks.wikitext import UNTOKENISED
from evalution_core import LoglikelihoodOutput, RollingLoglikelihoodOutput


def named(name: str, *rows: dict[str, Any], **options: Any) -> Any:
    kind: Any = load_suite(name)
    return kind(data=list(rows), **options)


@pytest.mark.parametrize(
    ("text", "context", "word"),
    [
        ("he saw the lamp", "he saw the", " lamp"),
        ("two  blanks", "two ", " blanks"),
        ("word", "", " word"),
        ("a line\nand another", "a line\nand", " another"),
    ],
)
def test_the_last_word_is_scored_with_its_blank(text: str, context: str, word: str) -> None:
    for name in ("lambada_openai", "lambada_standard"):
        (request,) = next(named(name, {"text": text}).samples()).requests
        assert (request.context, request.continuation) == (context, word)


@given(st.text(min_size=1))
def test_nothing_of_a_passage_is_lost(text: str) -> None:
    (request,) = next(named("lambada_openai", {"text": text}).samples()).requests
    assert request.context + request.continuation in (text, f" {text}")


def test_a_solved_passage_has_two_blanks_as_in_lm_eval() -> None:
    suite = named(
        "lambada_standard", {"text": "a b"}, fewshot_data=[{"text": "c d"}], num_fewshot=1
    )
    assert next(suite.samples()).prompt == "c  d\n\na"


def test_a_chat_keeps_the_blank_of_the_word() -> None:
    suite = named("lambada_openai", {"text": "a b"}, apply_chat_template=True)
    (request,) = next(suite.samples()).requests
    assert (request.messages, request.continuation) == ([{"role": "user", "content": "a"}], " b")


def test_the_perplexity_is_of_words_and_a_failed_row_is_left_out_of_it() -> None:
    suite = named("lambada_openai", {"text": "a b"}, {"text": "c d"}, {"text": "e f"})
    tally = suite.make_accumulator()
    for sample, answer in zip(suite.samples(), [(-1.0, True), (-3.0, False), None], strict=True):
        if answer is None:
            tally.fail(sample.index, suite.failure(sample))
        else:
            found = suite.score(sample, [LoglikelihoodOutput(*answer, 4)])
            tally.record(sample.index, found)
    results = tally.results()
    assert results["perplexity"].value == pytest.approx(math.exp(2))
    assert (results["acc"].value, results["acc"].n) == (pytest.approx(1 / 3), 3)
    assert results["perplexity"].n == 2


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("1 @,@ 240 t of 3 @.@ 5 @-@ ton steel", "1,240 t of 3.5-ton steel"),
        (" = = Section = = ", " == Section == "),
        ("= = = Part = = =", "=== Part ==="),
        ("= = = = Deep = = = =", "==== Deep ===="),
        ("one , two ; three : four . Five ! Six ? Yes", "one, two; three: four. Five! Six? Yes"),
        ("( a ) [ b ] { c }", "(a) [b] {c}"),
        ('he said " no " , twice', 'he said "no", twice'),
        ("the crew 's ships ' end", "the crew's ships' end"),
        ("20 ° C", "20°C"),
        ("N N days", "N 1 days"),
        ("one \n two", "one\ntwo"),
        ("/' 5/", "/'[0-9]/"),
    ],
)
def test_tokens_become_text_again(tokens: str, text: str) -> None:
    assert apply_filters(UNTOKENISED, tokens) == text


def test_an_article_is_scored_as_text_and_counted_in_tokens() -> None:
    page = "1 @,@ 240 tons"
    suite = named("wikitext", {"page": page})
    sample = next(suite.samples())
    assert sample.requests[0].text == "1,240 tons"
    measures = suite.score(sample, [RollingLoglikelihoodOutput(-6.0, 3)]).measures
    assert measures["word_perplexity"] == (-6.0, len(page.split()))
    assert measures["byte_perplexity"] == measures["bits_per_byte"] == (-6.0, len(page))
