"""An oracle on a model of its own, and how far from it answers may be."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest

from evalution_conformance import EngineConformance
from evalution_conformance.reference_values import load_reference_values
from evalution_conformance.subject import Subject
from evalution_conformance.suite import find_checks, make_subject, run_check
from evalution_core import BaseInferenceSession, LoglikelihoodOutput, LoglikelihoodRequest, Model
from mutants.toy import Toy, ToySession

ROUNDING = 1e-2
_built: list[str | None] = []


@dataclass(slots=True)
class Oracle(Toy):
    def build(self, model: Model) -> BaseInferenceSession:
        _built.append(model.path)
        return ToySession(self, model)


class _RoundingSession(ToySession):
    def change_score(
        self, request: LoglikelihoodRequest, output: LoglikelihoodOutput
    ) -> LoglikelihoodOutput:
        values = [value - ROUNDING for value in output.token_logprobs or []]
        return replace(output, token_logprobs=values, logprob=math.fsum(values))


@dataclass(slots=True)
class Rounding(Toy):
    def build(self, model: Model) -> BaseInferenceSession:
        return _RoundingSession(self, model)


class Quantised(EngineConformance):
    engine = Rounding()
    model = Model(path="quantised")
    oracle = Oracle()
    oracle_model = Model(path="floats")
    tolerance = 1e-6
    reference_tolerance = 2 * ROUNDING


def test_oracle_runs_its_own_model() -> None:
    _built.clear()
    values = load_reference_values(make_subject(Quantised))
    assert values.scoring
    assert set(_built) == {"floats"}


def test_oracle_without_a_model_runs_the_subjects() -> None:
    _built.clear()
    assert load_reference_values(Subject(Toy(), Model(path="toy"), oracle=Oracle())).scoring
    assert set(_built) == {"toy"}


def test_reference_tolerance_applies_to_the_oracle_alone() -> None:
    subject = make_subject(Quantised)
    assert (subject.tolerance, subject.reference_tolerance) == (1e-6, 2 * ROUNDING)
    check = find_checks(Quantised)["test_scores_equal_the_reference"]
    assert run_check(check, subject) == "passed"
    subject.close()


def test_tolerance_is_the_default_of_the_reference_tolerance() -> None:
    class Exact(Quantised):
        reference_tolerance = None

    subject = make_subject(Exact)
    assert subject.reference_tolerance == subject.tolerance
    check = find_checks(Exact)["test_scores_equal_the_reference"]
    with pytest.raises(
        AssertionError, match=r"they differ by 0.01 nats and the tolerance is 1e-06"
    ):
        run_check(check, subject)
    subject.close()
