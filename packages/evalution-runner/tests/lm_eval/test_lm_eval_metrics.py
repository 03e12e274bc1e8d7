"""Filters and metrics alone, against lm-evaluation-harness's own, on generated input."""

from __future__ import annotations

import warnings
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.scoring.filters import Lower, Regex, Replace, apply_filters
from evalution.scoring.metrics import (
    F1,
    BitsPerWeight,
    MatthewsCorrelation,
    Mean,
    Measure,
    WeightedPerplexity,
    make_prediction,
)

LM_EVAL = "needs the environment lm-eval of tools/envs"
theirs = pytest.importorskip("lm_eval.api.metrics", reason=LM_EVAL)
extraction = pytest.importorskip("lm_eval.filters.extraction", reason=LM_EVAL)
pytest.importorskip("sklearn.metrics", reason=LM_EVAL)  # else loaded within the first example

pytestmark = [pytest.mark.wide, pytest.mark.filterwarnings("default")]

PATTERNS = [
    r"#### (\-?[0-9\.\,]+)",
    r"The answer is (\-?[0-9\.\,]+).",
    r"(-?[$0-9.,]{2,})|(-?[0-9]+)",
    r"The final answer is ((-?[$0-9.,]{2,})|(-?[0-9]+))",
    r"[0-9]+",
    r"x( .*)",
    r"(a?)b",
    r"(a)?(b)?c",
    r"(?s)a(.*)b",
]
IGNORED = [",", r"\$", r"(?s).*#### ", r"\.$"]
texts = st.lists(
    st.sampled_from([*"abcx ,.$-\n0123456789", "#### ", "The answer is ", "The final answer is "])
).map("".join)
classes = st.integers(0, 1)


@given(st.sampled_from(PATTERNS), st.sampled_from([("first", 0), ("last", -1)]), texts)
def test_regex_takes_the_same(pattern: str, match: tuple[Any, int], text: str) -> None:
    taken = extraction.RegexFilter(pattern, group_select=match[1]).apply([[text]], [{}])
    assert [[Regex(pattern, match=match[0]).apply(text)]] == list(taken)


@given(texts, texts)
def test_what_an_exact_match_ignores_is_a_chain_of_steps(text: str, reference: str) -> None:
    found = theirs.exact_match_hf_evaluate(
        [text], [reference], regexes_to_ignore=IGNORED, ignore_case=True
    )
    steps = [*(Replace(pattern) for pattern in IGNORED), Lower()]
    ours = apply_filters(steps, text) == apply_filters(steps, reference)
    assert ours == bool(found["exact_match"])


@given(st.lists(st.tuples(classes, classes), min_size=1, max_size=40))
def test_classification_scores_are_the_same(pairs: list[tuple[int, int]]) -> None:
    measures = [make_prediction(predicted, right) for right, predicted in pairs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns where a class never occurs
        f1, correlation = theirs.f1_score(pairs), theirs.matthews_corrcoef(pairs)
    assert F1().estimate(measures).value == pytest.approx(f1)
    assert MatthewsCorrelation().estimate(measures).value == pytest.approx(correlation)


def test_the_correlation_of_many_classes_is_the_same() -> None:
    chance = Random(5)
    for _ in range(50):
        pairs = [(chance.randrange(4), chance.randrange(4)) for _ in range(chance.randrange(2, 50))]
        ours = MatthewsCorrelation().estimate(
            [make_prediction(found, right) for right, found in pairs]
        )
        assert ours.value == pytest.approx(theirs.matthews_corrcoef(pairs))


@given(st.lists(st.tuples(st.floats(-300, 0), st.integers(1, 90)), min_size=2, max_size=40))
def test_means_and_perplexities_are_the_same(items: list[tuple[float, int]]) -> None:
    weighted = [Measure(*item) for item in items]
    alone = [Measure(value) for value, _ in items]
    values = [value for value, _ in items]
    assert Mean().estimate(alone).value == pytest.approx(theirs.mean(values))
    assert Mean().estimate(alone).stderr == pytest.approx(theirs.mean_stderr(values), abs=1e-9)
    assert WeightedPerplexity().estimate(alone).value == pytest.approx(theirs.perplexity(values))
    perplexity = WeightedPerplexity().estimate(weighted).value
    assert perplexity == pytest.approx(theirs.weighted_perplexity(items))
    assert BitsPerWeight().estimate(weighted).value == pytest.approx(theirs.bits_per_byte(items))
