"""Rows of log-probabilities: read as a session gives them, and compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

from evalution_conformance.subject import Subject, require_output
from evalution_core import BaseInferenceSession
from evalution_core.requests import DistributionRequest, DistributionRows

Rows = list[list[float]]

ROUNDING = 1e-5
"""Nats that float32 may cost a value, and mass that it may cost a row."""


def allow_rounding(subject: Subject) -> float:
    """Return the tolerance of values that came through a row, in nats."""
    return max(subject.tolerance, ROUNDING)


def read_blocks(
    session: BaseInferenceSession, requests: Sequence[DistributionRequest]
) -> Iterator[tuple[int, DistributionRows]]:
    """Yield each block with the index of its request; a block out of its place fails the check."""
    missing = [len(request.input_ids) - request.start for request in requests]
    done = [0] * len(requests)
    widths: set[int] = set()
    for index, result in session.distributions(list(enumerate(requests))):
        block = require_output(result)
        due = next((at for at, count in enumerate(missing) if count), None)
        assert index == due, f"rows of request {index} came where those of {due} were due"
        assert block.first == done[index], (
            f"a block of request {index} says that {block.first} rows came before it, and it was "
            f"{done[index]}"
        )
        count, width = _measure_shape(block.rows)
        widths.add(width)
        assert len(widths) == 1, f"rows have different widths: {sorted(widths)}"
        done[index] += count
        missing[index] -= count
        assert missing[index] >= 0, f"request {index} got {-missing[index]} rows too many"
        yield index, block
    assert not any(missing), f"rows are missing, of each request so many: {missing}"


def _measure_shape(rows: Any) -> tuple[int, int]:
    assert isinstance(rows, memoryview), f"rows are a memoryview, got {type(rows).__name__}"
    assert (rows.format, rows.ndim, rows.c_contiguous) == ("f", 2, True), (
        f"rows are float32 of shape (positions, vocabulary) and C-contiguous, got format "
        f"{rows.format!r}, shape {rows.shape}, contiguous: {rows.c_contiguous}"
    )
    return cast("tuple[int, int]", rows.shape)


def read_rows(session: BaseInferenceSession, requests: Sequence[DistributionRequest]) -> list[Rows]:
    """Return all rows of each request."""
    found: list[Rows] = [[] for _ in requests]
    for index, block in read_blocks(session, requests):
        found[index] += cast("Rows", block.rows.tolist())
    return found


def assert_same_rows(found: Rows, expected: Rows, rule: str, tolerance: float) -> None:
    """As many rows, each within `tolerance` nats by `measure_distance`."""
    assert len(found) == len(expected), f"{rule}: {len(found)} rows and {len(expected)}"
    for at, (row, known) in enumerate(zip(found, expected, strict=True)):
        assert len(row) == len(known), f"{rule}: row {at} has {len(row)} values, not {len(known)}"
        distance = measure_distance(row, known)
        assert distance <= tolerance, (
            f"{rule}: row {at} is off by {distance:.3g} nats in the mean over its values, and the "
            f"tolerance is {tolerance:g}"
        )


def measure_distance(row: Sequence[float], known: Sequence[float]) -> float:
    """Return by how many nats two rows differ, in the mean over the vocabulary.

    The larger one of the root mean square, which an error in unlikely tokens shows in, and the mean
    weighted by the probabilities of `known`. The largest difference would say most of rounding in
    the least likely of a hundred thousand tokens.
    """
    gaps = [0.0 if a == b else abs(a - b) for a, b in zip(row, known, strict=True)]
    if math.inf in gaps:
        return math.inf
    squared = math.fsum(gap * gap for gap in gaps) / len(gaps)
    weighted = math.fsum(math.exp(b) * gap for b, gap in zip(known, gaps, strict=True))
    return max(math.sqrt(squared), weighted)
