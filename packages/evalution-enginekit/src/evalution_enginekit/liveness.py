"""Whether a runtime that fails one request after the other is dead (decision 0007)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

C = TypeVar("C")

PATIENCE = 3
"""Failures in a row, each of one request by itself, until a runtime is doubted."""


@dataclass(slots=True)
class Liveness(Generic[C]):
    """What speaks against a runtime, failures in a row, and for it, its control.

    Requests that fail side by side are no proof: the choices of one bad question do. So a runtime
    in doubt is given its control, and is dead if that fails too.
    """

    control: C | None = None
    """What worked last; before anything has, what is sure to work on a runtime that lives."""
    failures: int = 0

    def worked(self, done: C | None) -> None:
        """The runtime answered: `done` is what it did right, if it did."""
        self.failures = 0
        if done is not None:
            self.control = done

    def failed(self, *, patience: int = PATIENCE) -> bool:
        """Note that a request failed by itself; whether the runtime is in doubt."""
        self.failures += 1
        return self.failures >= patience

    def ended(self) -> None:
        """It was taken for dead: whoever comes next finds out anew."""
        self.failures = 0
