"""How likely the one right continuation is, and whether the model would write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalution.scoring.metrics import Mean, Measure, Metric, Score, WeightedPerplexity
from evalution.suites.prompted_suite import PromptedSuite
from evalution.suites.selection import Case
from evalution.suites.suite import RequestKind, Sample
from evalution_core import LoglikelihoodOutput, LoglikelihoodRequest

_METRICS: dict[str, Metric] = {"acc": Mean(), "perplexity": WeightedPerplexity()}


@dataclass(kw_only=True)
class ContinuationSuite(PromptedSuite[Sample, LoglikelihoodOutput]):
    """`answer_text` is scored after the prompt as it is: no delimiter stands before it.

    Metrics: `acc` is whether greedy decoding would write it, `perplexity` `exp` of the mean
    negative log-probability of a row's whole answer, as lm-evaluation-harness 0.4.13 has them.
    """

    request_kind = RequestKind.LOGLIKELIHOOD

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return _METRICS

    def sample(self, case: Case) -> Sample:
        prompt, answer = self.prompt_of(case), self.answer_text(case.row)
        request = (
            LoglikelihoodRequest(prompt, answer)
            if isinstance(prompt, str)
            else LoglikelihoodRequest(continuation=answer, messages=prompt)
        )
        return Sample(case.row.index, prompt, answer, [request])

    def score(self, sample: Sample, answers: Sequence[LoglikelihoodOutput]) -> Score:
        (answer,) = answers
        if answer.is_greedy is None:
            raise ValueError("the engine doesn't say whether the continuation is greedy")
        measures = {
            "acc": Measure(float(answer.is_greedy)),
            "perplexity": Measure(answer.logprob),
        }
        return Score(measures, extracted={"logprob": answer.logprob})
