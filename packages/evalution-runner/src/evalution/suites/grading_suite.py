"""Grades of a suite's answers by a judge: a suite of its own, whose samples are the answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import tee
from typing import Any

from evalution.samples import SampleResult, to_json
from evalution.samples_file import SuiteSamples
from evalution.scoring.metrics import (
    CohenKappa,
    Mean,
    Measure,
    Metric,
    Score,
    make_prediction,
)
from evalution.suites.generation_suite import AnswerSample, GenerationSuite
from evalution.suites.judge import Judge
from evalution.suites.suite import Sample, Suite
from evalution_core import Capability, ConfigurationError, GenerationOutput
from evalution_core.kinds import RequestKind

JUDGED = "judged"
"""End of the name that the grades of a suite have in results."""


@dataclass(slots=True)
class GradedSample(Sample):
    """An answer with the requests that grade it, and a person's verdict."""

    prediction: str
    label: float | None


@dataclass(kw_only=True)
class GradingSuite(Suite[GradedSample, GenerationOutput]):
    """A judge's grades of the answers of a suite that is finished.

    `judge` is the mean worth of its verdicts; where answers are compared in pairs, `win_rate` is,
    and `position_changed` the share of rows whose verdict changed with the order of the two
    answers, which count as ties. Rows that a `baseline_run` has no answer to aren't graded; with
    `same_prompts`, its prompts have to be those of the answers. Where rows have a person's verdict,
    `agreement` is the share that the judge agrees with, and `kappa` Cohen's. A verdict that can't
    be read fails its row, which then counts in none of them.
    """

    request_kind = RequestKind.GENERATION

    judge: Judge
    suite: GenerationSuite
    answers: SuiteSamples | None = None
    baseline: SuiteSamples | None = None
    same_prompts: bool = False
    record: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def title(self) -> str:
        return f"{self.suite.title}-{JUDGED}"

    @property
    def needs(self) -> frozenset[Capability]:
        return self.judge.needs

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The judge as it was loaded."""
        return {"judge_engine": self.record}

    def validate(self) -> None:
        """Nothing: the judge and the suite are checked as they are made."""

    def to_dict(self) -> dict[str, Any]:
        return {"judge": self.judge.to_dict()}

    def make_metrics(self) -> Mapping[str, Metric]:
        least, largest = self.judge.range
        worth = Mean(failed=None, largest=largest, least=least)
        shares = Mean(failed=None)
        pairs = self.judge.has_pairs
        return {
            "win_rate" if pairs else "judge": worth,
            **({"position_changed": Mean(higher_is_better=False, failed=None)} if pairs else {}),
            **({"agreement": shares, "kappa": CohenKappa()} if self.judge.label else {}),
        }

    def samples(self, limit: int | None = None) -> Iterator[GradedSample]:
        if self.answers is None:
            return
        samples, again = tee(self.suite.samples(limit))
        answers = self.answers.at(sample.index for sample in again)
        for sample, answer in zip(samples, answers, strict=True):
            other = None if self.baseline is None else self._find_answer(self.baseline, sample)
            if answer.error is None and (self.baseline is None or other is not None):
                yield self._make_sample(sample, answer, other or "")

    def score(self, sample: GradedSample, answers: Sequence[GenerationOutput]) -> Score:
        read = [self.judge.read_verdict(answer.text) for answer in answers]
        verdicts, worths = zip(*read, strict=True)
        worth, measures = worths[0], dict[str, Measure | None]()
        if self.judge.has_pairs:
            ends = sum(self.judge.range)
            is_stable = math.isclose(sum(worths), ends, rel_tol=1e-9, abs_tol=1e-9)
            worth = worths[0] if is_stable else ends / 2
            measures["position_changed"] = Measure(float(not is_stable))
        measures["win_rate" if "position_changed" in measures else "judge"] = Measure(worth)
        if self.judge.label is not None:
            label = sample.label
            measures["agreement"] = None if label is None else Measure(float(worth == label))
            measures["kappa"] = None if label is None else make_prediction(worth, label)
        extracted = {"verdict": ", swapped ".join(verdicts)}
        for name, answer in zip(("reason", "reason_swapped"), answers, strict=False):
            extracted[name] = answer.text
        return Score(measures, sample.prediction, extracted)

    def _find_answer(self, samples: SuiteSamples, asked: AnswerSample) -> str | None:
        """Return another run's answer to a row; None if it has none.

        Raises:
            ConfigurationError: the row of that number is another one there.
        """
        if asked.index not in samples:
            return None
        found = next(iter(samples.at([asked.index])))
        problem = None
        if found.target != asked.target:
            problem = f"target there is {found.target!r}, here {asked.target!r}"
        elif self.same_prompts and to_json(found.prompt) not in ("null", to_json(asked.prompt)):
            problem = "prompt is another one, which no option explains"
        if problem is not None:
            raise ConfigurationError(
                f"row {asked.index} of the judge's baseline_run is another row: its {problem}; "
                "name a run of the same rows"
            )
        return None if found.error is not None else _read_answer(found)

    def _make_sample(self, sample: AnswerSample, answer: SampleResult, other: str) -> GradedSample:
        prediction = _read_answer(answer)
        texts = {
            "prompt": _to_text(sample.prompt),
            "target": sample.target,
            "prediction": prediction,
        }
        return GradedSample(
            sample.index,
            sample.prompt,
            sample.target,
            self.judge.make_requests(sample.row, texts, other),
            prediction,
            self.judge.read_label(sample.row),
            group=sample.group,
        )


def _read_answer(sample: SampleResult) -> str:
    return str(sample.extracted.get("answer", sample.prediction or ""))


def _to_text(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in prompt)
