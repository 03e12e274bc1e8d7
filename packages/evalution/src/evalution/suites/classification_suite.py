"""Which of a few classes a row belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from evalution.rows.local import Row
from evalution.scoring.classification import F1, MatthewsCorrelation, answered, unanswered
from evalution.scoring.metrics import Measure, Metric
from evalution.suites.choice_suite import ChoiceSample, ChoiceSuite

_OVER_ALL: dict[str, Metric] = {"f1": F1(), "mcc": MatthewsCorrelation()}


@dataclass(kw_only=True)
class ClassificationSuite(ChoiceSuite):
    """The choices are the `classes`, the same for every row; the column `label` holds an index.

    Besides `ChoiceSuite`'s metrics there are `f1` of the class with index 1 and `mcc`, the Matthews
    correlation, both of the choice that `acc` judges. A row without an answer counts as classified
    wrongly.
    """

    classes: ClassVar[Sequence[str]]

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return {**super().metrics, **self._over_all}

    def choice_texts(self, row: Row) -> Sequence[str]:
        return self.classes

    def gold_index(self, row: Row, choices: Sequence[str]) -> int:
        return row.index_in("label", len(choices))

    def measures(
        self, sample: ChoiceSample, chosen: Mapping[str, int]
    ) -> Mapping[str, Measure | None]:
        pair = answered(chosen["acc"], sample.gold)
        by_choice = {**chosen, **dict.fromkeys(self._over_all, chosen["acc"])}
        return {**super().measures(sample, by_choice), **dict.fromkeys(self._over_all, pair)}

    def failure(self, sample: ChoiceSample) -> Mapping[str, Measure]:
        wrong = unanswered(sample.gold, len(sample.choices))
        return {**super().failure(sample), **dict.fromkeys(self._over_all, wrong)}

    @property
    def _over_all(self) -> Mapping[str, Metric]:
        return {name: metric for name, metric in _OVER_ALL.items() if name in self.metric_names}
