"""What an engine answered, kept small: log-probabilities as arrays, and no requests."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from evalution.exchange import Answer
from evalution.runs.in_flight import find_answer_problem
from evalution_core import GenerationOutput, RequestFailure, scrub

Key = tuple[int, int]
"""The row's index, and which of its requests."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A continuation's or a text's score; None is what the engine doesn't tell."""

    logprob: float
    token_count: int
    token_logprobs: array[float] | None
    token_ids: array[int] | None
    is_greedy: bool | None = None
    truncated: int | None = None


@dataclass(frozen=True, slots=True)
class Generated:
    """A completion; `gaps` are between the two most likely tokens of each step, in nats."""

    text: str
    token_ids: array[int] | None
    token_logprobs: array[float] | None
    gaps: array[float] | None
    truncated: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Why there is no answer."""

    reason: str


Record = Scored | Generated | Failed


def record_of(answer: Answer | RequestFailure) -> Record:
    """An answer's record; one that could not be scored is a failure."""
    if isinstance(answer, RequestFailure):
        return Failed(scrub(f"{type(answer.error).__name__}: {answer.error}"))
    if (fault := find_answer_problem(answer)) is not None:
        return Failed(fault)
    if isinstance(answer, GenerationOutput):
        return Generated(
            answer.text,
            _integers(answer.token_ids),
            _floats(answer.token_logprobs),
            _gaps(answer.top_logprobs),
            answer.truncated_tokens,
        )
    values = _floats(answer.token_logprobs)
    if values is not None and len(values) != answer.token_count:
        return Failed(f"{len(values)} log-probabilities came for {answer.token_count} tokens")
    return Scored(
        float(answer.logprob),
        int(answer.token_count),
        values,
        _integers(answer.token_ids),
        getattr(answer, "is_greedy", None),
        getattr(answer, "truncated_tokens", None),
    )


def _floats(values: Sequence[float] | None) -> array[float] | None:
    return None if values is None else array("d", values)


def _integers(values: Sequence[int] | None) -> array[int] | None:
    return None if values is None else array("q", values)


def _gaps(top_logprobs: Sequence[dict[int, float]] | None) -> array[float] | None:
    if top_logprobs is None:
        return None
    return array("d", (_gap(sorted(step.values(), reverse=True)) for step in top_logprobs))


def _gap(best: Sequence[float]) -> float:
    """Between the first two; NaN where an engine told fewer."""
    return best[0] - best[1] if len(best) > 1 else math.nan
