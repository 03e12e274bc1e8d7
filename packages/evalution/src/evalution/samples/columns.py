"""What two runs are compared by, a few numbers a sample instead of its texts."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable

from evalution.samples.sample import SampleResult


class SampleColumns:
    """Samples of one suite, in the order in which they were given, without their texts.

    Position by position: `rows` holds the rows' numbers; `failed` is 1 where there is an error;
    `prompts` and `targets` are equal where these are, in this process, and 0 where there is none;
    `metrics` has a value each, NaN where the sample has none and infinite where it is not finite,
    which JSON has no word for.
    """

    def __init__(self, samples: Iterable[SampleResult]):
        self.rows = array("q")
        self.failed = bytearray()
        self.prompts = array("q")
        self.targets = array("q")
        self.metrics: dict[str, array[float]] = {}
        for sample in samples:
            self._add(sample)

    def __len__(self) -> int:
        return len(self.rows)

    def _add(self, sample: SampleResult) -> None:
        for name in sample.metrics:
            if name not in self.metrics:
                self.metrics[name] = array("d", [math.nan]) * len(self.rows)
        for name, column in self.metrics.items():
            column.append(_value(sample.metrics[name]) if name in sample.metrics else math.nan)
        self.rows.append(sample.index)
        self.failed.append(sample.error is not None)
        self.prompts.append(_digest(sample.prompt))
        self.targets.append(_digest(sample.target))


def _value(value: float | None) -> float:
    return math.inf if value is None or math.isnan(value) else value


def _digest(value: object) -> int:
    """64 bits; two of the same row that differ are taken for equal once in 10^19 rows."""
    if value is None:
        return 0
    if isinstance(value, str):
        return hash(value) or 1
    return hash((json.dumps(value, sort_keys=True, default=str),)) or 1
