"""Assertions on answers: texts, log-probabilities and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from evalution_conformance.reference_values import top2_gaps
from evalution_conformance.subject import Subject
from evalution_core import (
    Capability,
    GenerationOutput,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodOutput,
    RequestFailure,
    RollingLoglikelihoodOutput,
    UnsupportedRequestError,
)
from evalution_core.encoding import shared_prefix

UNDECIDED = 1e-3
"""Nats by which a token must lead the next one for a greedy choice to be certain."""
Scored = LoglikelihoodOutput | RollingLoglikelihoodOutput
Answer = GenerationOutput | Scored


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
    for at, (value, known) in enumerate(zip(found, expected, strict=True)):
        difference = 0.0 if value == known else abs(value - known)
        assert difference <= allowed, (
            f"{rule}: token {at} has {value:.10g}, expected {known:.10g}; they differ by "
            f"{difference:.3g} nats and the tolerance is {allowed:g}"
        )


def assert_has_values(
    subject: Subject,
    output: Scored,
    expected: Sequence[float],
    rule: str,
    *,
    tolerance: float | None = None,
) -> None:
    """As `assert_same_logprobs`; where either side has no token values, the sums."""
    allowed = subject.tolerance if tolerance is None else tolerance
    found = output.token_logprobs
    if found is None or len(expected) == 1:
        found, expected = [output.logprob], [math.fsum(expected)]
        allowed *= max(1, output.token_count)
    assert_same_logprobs(subject, found, expected, rule, tolerance=allowed)


def assert_scores(
    subject: Subject,
    context_ids: Sequence[int],
    continuation_ids: Sequence[int],
    expected: Sequence[float],
    rule: str,
) -> None:
    """Ids are scored with the reference's values; without token values, with their sum."""
    output = subject.score_ids(context_ids, continuation_ids)
    rule = f"{len(continuation_ids)} tokens after {len(context_ids)}{rule}, against the reference"
    assert_has_values(subject, output, expected, rule, tolerance=subject.reference_tolerance)


def assert_same_score(subject: Subject, found: Scored, expected: Scored, rule: str) -> None:
    """Values are the same, and `is_greedy` where both know it and rounding can't decide it."""
    values = expected.token_logprobs
    assert_has_values(subject, found, [expected.logprob] if values is None else values, rule)
    known = getattr(found, "is_greedy", None), getattr(expected, "is_greedy", None)
    if None not in known and subject.tolerance <= UNDECIDED:
        assert known[0] == known[1], f"{rule}: is_greedy is {known[0]}, expected {known[1]}"


_EXACT = (
    "prompt",
    "metadata",
    "finish_reason",
    "token_ids",
    "token_count",
    "prompt_tokens",
    "completion_tokens",
    "truncated_tokens",
)


def assert_same_fields(
    subject: Subject, found: Answer, expected: Answer, rule: str, *, stops: bool = False
) -> None:
    """All fields of two answers with the same text are the same, log-probabilities up to rounding.

    With `stops`, tokens that were generated behind a stop string may differ in number.
    """
    for name in _EXACT:
        value, wanted = getattr(found, name, None), getattr(expected, name, None)
        if name != "completion_tokens" or not stops:
            assert value == wanted, f"{rule}: {name} is {value!r}, not {wanted!r}"
    for name in ("token_logprobs", "top_logprobs"):
        values, known = (_list_values(getattr(answer, name)) for answer in (found, expected))
        assert_same_logprobs(subject, values, known, f"{rule}: {name}")


def _list_values(values: Sequence[float | dict[int, float]] | None) -> list[float]:
    """List log-probabilities of tokens, or of the most likely ones at each of them, in order."""
    return [
        value
        for entry in values or []
        for value in (sorted(entry.values()) if isinstance(entry, dict) else [entry])
    ]


def assert_failure(result: object, metadata: dict[str, Any], asked: str) -> None:
    """The result of a bad request in a stream says why it failed, and whose it is.

    Raises:
        UnsupportedRequestError: a capability is missing; the run of the check decides about it.
    """
    assert isinstance(result, RequestFailure), f"{asked} gave {result!r}"
    if isinstance(result.error, UnsupportedRequestError):
        raise result.error
    assert isinstance(result.error, InvalidRequestError), f"{asked} gave {result.error!r}"
    assert result.metadata == metadata, "the failure lacks the request's metadata"


def assert_same_values(
    subject: Subject, found: GenerationOutput, expected: GenerationOutput, rule: str
) -> None:
    """The tokens that both generated have the same values, up to the first that differs."""
    step = first_difference(found.token_ids or [], expected.token_ids or [])
    if step != 0 and expected.token_ids:
        values = (found.token_logprobs or [])[:step]
        assert_same_logprobs(subject, values, (expected.token_logprobs or [])[:step], rule)


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first index at which two sequences differ; None if they are equal."""
    shared = shared_prefix(left, right)
    return None if shared == len(left) == len(right) else shared


def assert_same_completion(
    subject: Subject,
    request: GenerationRequest,
    found: GenerationOutput,
    expected: GenerationOutput,
    rule: str,
) -> None:
    """As `assert_same_text`; equal texts have equal fields, and what was asked is heeded."""
    # Of a sampled request, one token alone is allowed, or its seed fixes the text.
    assert_same_text(subject, replace(request, do_sample=False), found, expected, rule)
    if found.text == expected.text:
        assert_same_fields(subject, found, expected, rule, stops=bool(request.stop))
    if request.logprobs is not None:
        assert found.token_logprobs is not None, f"{rule}: the log-probabilities are missing"
    if request.ignore_eos:
        assert found.finish_reason != "stop", f"{rule}: ignore_eos is ignored"
    if request.rendered_prompt is not None:
        assert found.prompt == request.rendered_prompt, f"{rule}: the prompt is {found.prompt!r}"
    assert not any(stop in found.text for stop in request.stop), f"{rule}: a stop is in the text"


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
