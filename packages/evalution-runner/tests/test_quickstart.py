"""The tiny trained model on the reference engine: what a newcomer runs first."""

from __future__ import annotations

from typing import Any

import pytest

import evalution
from evalution.scoring.filters import Regex
from evalution.yaml_spec.run_spec import load_spec


@pytest.fixture(scope="module")
def result() -> evalution.RunResult:
    spec = load_spec("builtin:tiny/quickstart")
    return evalution.run(engine=spec.engine, model=spec.model, tests=spec.tests)


def test_scores_are_those_of_the_models_card(result: evalution.RunResult) -> None:
    assert result["sums"].metrics["exact_match"].value == 1.0
    assert result["choices"].metrics["acc"].value == pytest.approx(118 / 120)
    assert (result["sums"].n, result["choices"].n, result["prose"].n) == (120, 120, 48)


def test_the_perplexity_per_token_is_the_models_card(result: evalution.RunResult) -> None:
    samples = result["prose"].samples
    tokens = sum(sample.tokens["scored"] for sample in samples)
    logprob = sum(sample.extracted["logprob"] for sample in samples)
    assert 2.718281828459045 ** (-logprob / tokens) == pytest.approx(2.995, abs=1e-3)


def test_nothing_fails_and_the_check_passes(result: evalution.RunResult) -> None:
    assert result.failed == 0
    assert result.engine["self_check"]["outcome"] == "passed"
    assert result.engine["options"]["dtype"] == "float64"


@pytest.mark.parametrize(
    "options",
    [{"apply_chat_template": True}, {"num_fewshot": 3}, {"num_fewshot": 3, "fixed_shots": True}],
)
def test_the_model_answers_in_a_chat_and_after_solved_rows(options: dict[str, Any]) -> None:
    number = Regex("#### (-?[0-9]+)")
    suite = evalution.Generation(
        data="builtin:tiny/sums",
        fewshot_data="builtin:tiny/sums_shots",
        prompt="{question}" if "apply_chat_template" in options else "Q: {question}\nA:",
        target="answer",
        filters=[number],
        target_filters=[number],
        max_new_tokens=48,
        max_rows=30,
        **options,
    )
    engine = evalution.engines.Reference()
    result = evalution.run(engine=engine, model="builtin:tiny", tests=[suite])
    assert (result["sums"].metrics["exact_match"].value or 0) > 0.9
