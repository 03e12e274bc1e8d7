"""What a run or one side of a parity check asks."""

from __future__ import annotations

from dataclasses import dataclass

from evalution_core import BaseEngine, Model


@dataclass(frozen=True, slots=True)
class Lane:
    """An engine with its model."""

    engine: BaseEngine
    model: Model
