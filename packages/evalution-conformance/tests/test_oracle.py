"""An oracle on a model of its own, and how far from it answers may be."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest

from evalution_conformance import EngineConformance
from evalution_conformance.reference_values import load_reference_values
from evalution_conformance.subject import Subject
from evalution_conformance.suite import NotRun, find_checks, make_subject, run_check
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


class _UnknownPrecision(ToySession):
    def _describe(self) -> dict[str, object]:
        return {"dtype": "int4"}


@dataclass(slots=True)
class Unknown(Toy):
    def build(self, model: Model) -> BaseInferenceSession:
        return _UnknownPrecision(self, model)


def test_unknown_dtype_is_asked_about_once_and_a_declared_tolerance_answers() -> None:
    subject = Subject(Unknown(), Model(path="toy"), oracle=Toy())
    checks = find_checks(EngineConformance)
    question = (
        "describe_execution() of Unknown reports dtype 'int4', which has no tolerance in nats per "
        "token; known are float64 (1e-09), float32 (0.0001), float16 (0.02), bfloat16 (0.1). By "
        "how much may two calls differ? Measure it, and state it in the class as `tolerance = …`"
    )
    with pytest.raises(AssertionError) as caught:
        run_check(checks["test_scores_equal_the_reference"], subject)
    assert str(caught.value) == question
    with pytest.raises(NotRun, match=r"^not run: describe_execution"):
        run_check(checks["test_rolling_equals_the_reference"], subject)
    subject.close()
    stated = Subject(Unknown(), Model(path="toy"), oracle=Toy(), declared_tolerance=1e-3)
    assert run_check(checks["test_scores_equal_the_reference"], stated) == "passed"
    stated.close()


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
