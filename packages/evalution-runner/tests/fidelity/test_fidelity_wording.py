from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from evalution.fidelity.result import ChoiceFlips, Estimate, FidelityResult, Side
from evalution.fidelity.wording import (
    describe_result,
    format_estimate,
    format_nats,
    format_share,
    name_engine,
)


def test_contrast_with_the_control_is_the_first_sentence(make_fidelity: Any) -> None:
    result = make_fidelity(0.0124, 0.0115)
    overall = replace(result.overall, contrast=Estimate(0.0009, 0.0002, 0.0016))

    assert describe_result(replace(result, overall=overall))[0] == (
        "Quantisation cost 0.0009 nats (0.0002 to 0.0016) beyond the 0.0115 that changing the "
        "engine costs."
    )


@pytest.mark.parametrize(
    ("contrast", "start"),
    [
        (Estimate(0.0009, -0.0001, 0.0019), "Quantisation cost nothing that is clear of zero"),
        (Estimate(-0.0009, -0.0011, -0.0007), "Quantisation brought the candidate nearer"),
        (Estimate(0.0009, None, None), "Quantisation cost 0.00090 nats beyond the 0.0115"),
    ],
)
def test_contrast_without_a_clear_cost_says_so(
    make_fidelity: Any, contrast: Estimate, start: str
) -> None:
    result = make_fidelity()
    overall = replace(result.overall, contrast=contrast)
    assert describe_result(replace(result, overall=overall))[0].startswith(start)


@pytest.mark.parametrize(
    ("model", "engine", "sentence"),
    [
        (False, False, "what the engine changed and what the weights changed can't be separated."),
        (True, False, "Changing the engine costs 0.0124 nats (0.0093 to 0.0155)."),
        (False, True, "The other weights cost 0.0124 nats (0.0093 to 0.0155); the engine is"),
        (True, True, "The same model on the same engine differs from itself by 0.0124 nats"),
    ],
)
def test_without_a_control_only_one_change_has_a_cause(
    make_fidelity: Any, model: bool, engine: bool, sentence: str
) -> None:
    result: FidelityResult = make_fidelity(floor=None)
    candidate = Side(
        (result.reference if model else result.candidate).model | {"label": "mine"},
        (result.reference if engine else result.candidate).engine,
    )
    assert sentence in describe_result(replace(result, candidate=candidate))[0]


@pytest.mark.parametrize(
    ("names", "path", "identities", "sentence"),
    [
        ((None, None), "m", (None, None), "can't be separated."),
        (("E", None), "m", (None, None), "can't be separated."),
        (("E", "E"), None, (None, None), "can't be separated."),
        (("E", "E"), None, ({"sha256": "a"}, None), "can't be separated."),
        (("E", "E"), None, ({"sha256": "a"}, {"sha256": "b"}), "The other weights cost"),
        (("E", "E"), None, ({"sha256": "a"}, {"sha256": "a"}), "The same model on the same engine"),
        (("E", "F"), None, ({"sha256": "a"}, {"sha256": "a"}), "Changing the engine costs"),
    ],
)
def test_unknown_engines_and_models_are_never_called_the_same(
    make_fidelity: Any, names: Any, path: str | None, identities: Any, sentence: str
) -> None:
    reference, candidate = (
        Side({"path": path}, {"name": name, "options": {}, "identity": identity})
        for name, identity in zip(names, identities, strict=True)
    )
    result = replace(make_fidelity(floor=None), reference=reference, candidate=candidate)
    assert sentence in describe_result(result)[0]


def test_lower_bound_is_called_one_with_the_covered_mass(make_fidelity: Any) -> None:
    lines = describe_result(make_fidelity(floor=None, top=20))

    assert "lies at least 0.0124 nats" in lines[0]
    assert (
        "The divergences of the candidate are lower bounds: the tokens that were compared cover "
        "93.12 % of the reference's probability in the mean." in lines
    )
    with_control = describe_result(make_fidelity(top=20))
    assert with_control[0] == (
        "Quantisation and the engine can't be separated: the candidate lies ≥ 0.0124 (0.0093 to "
        "0.0155) nats from the reference, the control ≥ 0.0115 (0.0086 to 0.0144), and a "
        "difference is no bound where one of these is a lower bound."
    )


def test_difference_of_exactly_zero_is_remarked(make_fidelity: Any) -> None:
    zero = make_fidelity(0.0, 0.0)
    lines = describe_result(zero)

    assert (
        "The difference of the candidate is exactly zero at all 5,000 positions: make sure that "
        "both sides weren't given the same file." in lines
    )
    assert any("control is exactly zero" in line for line in lines)
    assert any("Candidate and control are equally far" in line for line in lines)
    assert not any("exactly zero" in line for line in describe_result(make_fidelity()))


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"infinite": 3}, "At 3 of 5,000 positions the candidate calls a token impossible"),
        ({"kl": Estimate(0.1, None, None)}, "it takes at least two documents to estimate one"),
        ({"top_share": 0.8}, "worst 1 % of positions carry 80.00 % of it, and half of all have"),
    ],
)
def test_mean_that_says_little_is_remarked(
    make_fidelity: Any, changes: dict[str, Any], remark: str
) -> None:
    assert remark in " ".join(describe_result(make_fidelity(floor=None, **changes)))
    assert "impossible" not in " ".join(describe_result(make_fidelity(floor=None)))


def test_decisions_are_counted_both_ways(make_fidelity: Any) -> None:
    lines = describe_result(make_fidelity(floor=None))
    assert (
        "Of 60 questions the candidate answers 4 otherwise: 2 turned wrong, 1 turned right."
        in lines
    )
    assert (
        "Of 20 greedy completions 14 are the same; half of the others differ "
        "within 9 tokens." in lines
    )


def test_questions_without_a_flip_take_few_words(make_fidelity: Any) -> None:
    result = make_fidelity(floor=None)
    arm = replace(result.overall.candidate, flips=ChoiceFlips(60, 0, 0, 0))
    overall = replace(result.overall, candidate=arm)
    lines = describe_result(replace(result, overall=overall))
    assert "All 60 questions are answered alike." in lines


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.2345678, "1.2346"),
        (0.00091, "0.00091"),
        (-0.0115, "−0.0115"),
        (3.21e-9, "3.2e−09"),
        (math.inf, "∞"),
    ],
)
def test_nats_are_shown_in_digits_that_mean_something(value: float, text: str) -> None:
    assert format_nats(value) == text


def test_estimate_has_the_same_decimals_in_all_its_numbers() -> None:
    assert format_estimate(Estimate(2e-9, 1e-12, 3e-9)) == "2.0e−09 (1.0e−12 to 3.0e−09)"
    assert format_estimate(Estimate(0.02, 0.0, 1e-5), is_lower_bound=True) == (
        "≥ 0.0200 (0.0000 to 0.0000)"
    )


def test_share_is_whole_only_where_it_is() -> None:
    assert [format_share(share) for share in (1, 0.99999, 0.5, 1e-9, 0)] == [
        "100.00 %", "> 99.99 %", "50.00 %", "< 0.01 %", "0.00 %",
    ]  # fmt: skip


def test_engine_is_named_without_credentials() -> None:
    engine = {"name": "E https://me:hunter2@host", "execution": {"quantization": "gptq", "bits": 4}}
    named = name_engine(Side({}, engine))
    assert "hunter2" not in named
    assert named.endswith("(gptq, 4 bits)")
