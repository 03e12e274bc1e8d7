"""Evaluation inside a training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from evalution_core import BaseEngine, BaseInferenceSession, ConfigurationError, Model

T = TypeVar("T")


class PeriodicEvaluation(Generic[T]):
    """Evaluates the model in `handles` every so many steps, by attaching an engine to it.

    Each time a session is made and closed: no answer outlives the weights that gave it. `results`
    holds what `evaluate` returned, by step.

    Args:
        engine: has the capability `attach`.
        handles: what a backend prepared.
        every: steps from one evaluation to the next; step 0 is evaluated too.
        evaluate: gets the session and the step.
        model: for an engine that needs more than the handles hold, such as a tokenizer.

    Raises:
        ConfigurationError: `every` is no int, or below 1.
    """

    def __init__(
        self,
        engine: BaseEngine,
        handles: Mapping[str, Any],
        *,
        every: int,
        evaluate: Callable[[BaseInferenceSession, int], T],
        model: Model | None = None,
    ):
        if type(every) is not int or every < 1:
            raise ConfigurationError(f"every must be an int of at least 1, got {every!r}")
        self._engine = engine
        self._handles = handles
        self._every = every
        self._evaluate = evaluate
        self._model = model
        self.results: dict[int, T] = {}

    def after(self, step: int) -> T | None:
        """Evaluate at each multiple of `every`, and return the result; None at other steps."""
        if step % self._every:
            return None
        with self._engine.attach(self._handles, self._model) as session:
            self.results[step] = found = self._evaluate(session, step)
        return found
