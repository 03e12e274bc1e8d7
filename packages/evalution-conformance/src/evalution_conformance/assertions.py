"""Assertions on answers: texts, log-probabilities and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from evalution_conformance.reference_values import top2_gaps
from evalution_conformance.subject import Subject
from evalution_core import (
    Capability,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    RollingLoglikelihoodOutput,
    UnsupportedRequestError,
)
from evalution_core.encoding import shared_prefix

UNDECIDED = 1e-3
"""Nats by which a token must lead the next one for a greedy choice to be certain."""
Scored = LoglikelihoodOutput | RollingLoglikelihoodOutput


def assert_same_text(
    subject: Subject,
    request: GenerationRequest,
    found: GenerationOutput,
    expected: GenerationOutput,
    rule: str,
) -> None:
    """Greedy texts are equal, at least up to the first step that rounding may decide otherwise."""
    if found.text == expected.text:
        return
    gaps: list[float] = []
    if subject.declares(Capability.LOGPROBS) and not request.do_sample:
        request.logprobs = 2
        gaps = top2_gaps(subject.complete(request).top_logprobs or [])
    assert_tokens_agree(subject, found, expected.text, expected.token_ids, gaps, rule)


def assert_tokens_agree(
    subject: Subject,
    found: GenerationOutput,
    text: str,
    token_ids: Sequence[int] | None,
    gaps: Sequence[float],
    rule: str,
    *,
    tolerance: float | None = None,
) -> None:
    """As `assert_same_text`, with the expected text, ids and leads of the first token given.

    `tolerance` is nats per token; None: the subject's.
    """
    if found.text == text:
        return
    message = f"{rule}: expected {text!r}, got {found.text!r}"
    assert found.token_ids is not None, message
    assert token_ids is not None, message
    step = first_difference(found.token_ids, token_ids)
    undecided = max(UNDECIDED, 2 * (subject.tolerance if tolerance is None else tolerance))
    assert step is not None and any(gap < undecided for gap in gaps[: step + 1]), message  # noqa: PT018 - one sentence


def assert_same_logprobs(
    subject: Subject,
    found: Sequence[float] | None,
    expected: Sequence[float] | None,
    rule: str,
    *,
    tolerance: float | None = None,
) -> None:
    """As many tokens, and each within `tolerance` nats; None: the subject's."""
    allowed = subject.tolerance if tolerance is None else tolerance
    assert found is not None, f"{rule}: token_logprobs is missing"
    assert expected is not None, f"{rule}: token_logprobs is missing"
    assert len(found) == len(expected), (
        f"{rule}: expected {len(expected)} token log-probabilities, got {len(found)}"
    )
    differences = [abs(a - b) for a, b in zip(found, expected, strict=True)]
    worst = max(range(len(differences)), key=differences.__getitem__)
    assert differences[worst] <= allowed, (
        f"{rule}: token {worst} has {found[worst]:.10g}, expected {expected[worst]:.10g}; they "
        f"differ by {differences[worst]:.3g} nats and the tolerance is {allowed:g}"
    )


def assert_scores(
    subject: Subject,
    context_ids: Sequence[int],
    continuation_ids: Sequence[int],
    expected: Sequence[float],
    rule: str,
) -> None:
    """Ids are scored with the reference's values; without token values, with their sum."""
    output = subject.score_ids(context_ids, continuation_ids)
    found = output.token_logprobs
    if found is None:
        found, expected = [output.logprob], [math.fsum(expected)]
    rule = f"{len(continuation_ids)} tokens after {len(context_ids)}{rule}, against the reference"
    assert_same_logprobs(subject, found, expected, rule, tolerance=subject.reference_tolerance)


def assert_same_score(subject: Subject, found: Scored, expected: Scored, rule: str) -> None:
    """As `assert_same_logprobs`; without token values, the sums."""
    if found.token_logprobs is None or expected.token_logprobs is None:
        assert_same_logprobs(subject, [found.logprob], [expected.logprob], rule)
    else:
        assert_same_logprobs(subject, found.token_logprobs, expected.token_logprobs, rule)


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first index at which two sequences differ; None if they are equal."""
    shared = shared_prefix(left, right)
    return None if shared == len(left) == len(right) else shared


E = TypeVar("E", bound=Exception)


def assert_refused(call: Callable[[], Any], kind: type[E], asked: str) -> E:
    """The error of this class that `call` raises.

    Raises:
        AssertionError: another error came, or none.
        UnsupportedRequestError: a capability is missing; the run of the check decides about it.
    """
    try:
        found = call()
    except kind as error:
        return error
    except UnsupportedRequestError:
        raise
    except Exception as error:
        raise AssertionError(
            f"{asked} must be refused with {kind.__name__}, but came {error!r}"
        ) from error
    raise AssertionError(f"{asked} must be refused with {kind.__name__}, but gave {found!s:.200}")
