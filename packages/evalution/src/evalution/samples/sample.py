"""One sample of a run: what was asked, answered and scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


def _empty() -> dict[str, Any]:
    return {}


@dataclass(slots=True)
class SampleResult:
    """One sample, as a line of `samples.jsonl`; the same fields for every suite.

    `metrics` holds the sample's own value of each metric, `tokens` what the engine counted
    (`prompt`, `completion`, `scored`, `truncated`; what it doesn't report is left out). With an
    `error`, there was no answer to score.
    """

    suite: str
    index: int
    prompt: str | Sequence[Mapping[str, Any]] | None = None
    target: str | None = None
    prediction: str | None = None
    extracted: Mapping[str, Any] = field(default_factory=_empty)
    metrics: Mapping[str, float] = field(default_factory=_empty)
    tokens: Mapping[str, int] = field(default_factory=_empty)
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}
