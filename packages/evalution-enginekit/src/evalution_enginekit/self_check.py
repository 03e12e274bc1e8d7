"""Known sequences on which a model is tried, and by how much two ways to run it may differ.

The self check is a one-second test that scoring means what the contract says, before the first
score. Runtimes have been seen to give prompt log-probabilities shifted by one, without the first
token, all zero, or cut by a cache, and no error. So a few tokens are generated greedily, with their
log-probabilities, from a short known sequence, and then scored: both paths must agree.

Engines that try on the model itself which forms of a pass it takes use `probe_ids` for the tokens
and `logits_alike` to compare the logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from evalution_core import CheckResult, GenerationOutput
from evalution_core.encoding import TokenSpan, encode_with_leading
from evalution_enginekit.planning import TokenScore, WrongScoresError
from evalution_enginekit.tokenizer import Tokenizer

_TEXT = "The first of 3 apples is red, and the other 2 are green."
_LENGTH = 4
_TOLERANCES = {"float64": 1e-8, "float32": 1e-3, "float16": 5e-2, "bfloat16": 1e-1}
_LOOSEST = 0.3
_LOGIT_TOLERANCES = {"float64": 1e-3, "float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
_LOOSEST_LOGITS = 1e-1
_SMALLEST_SPREAD = 1e-6
_PROBE_STRIDE, _PROBE_START = 7919, 13

Complete = Callable[[Sequence[int], int], GenerationOutput]
Score = Callable[[Sequence[TokenSpan]], Sequence[TokenScore]]


def probe_ids(vocab_size: int, length: int = 13) -> list[int]:
    """Return token ids, far apart in a vocabulary, to try a model on.

    The stride is prime, so that ids repeat only where the vocabulary is smaller than `length`.
    """
    return [(_PROBE_STRIDE * at + _PROBE_START) % vocab_size for at in range(length)]


def score_tolerance(dtype: str) -> float:
    """Return the nats by which one token's log-probability may differ between two ways to get it.

    `dtype` is the precision of the arithmetic; an unknown one, such as a quantised format, gets
    0.3.
    """
    return _TOLERANCES.get(dtype, _LOOSEST)


def logits_alike(
    distances: Iterable[float], spreads: Iterable[float], dtype: str | None = None
) -> bool:
    """Return whether rows of logits are the same rows, up to what another order of sums does.

    Args:
        distances: for each row, the root mean square of its differences from the expected row.
        spreads: for each row, the standard deviation of the expected row.
        dtype: precision of the arithmetic; an unknown one gets the loosest tolerance.
    """
    tolerance = _LOGIT_TOLERANCES.get(dtype or "", _LOOSEST_LOGITS)
    return all(
        # A distance that isn't a number is no distance.
        distance <= tolerance * max(spread, _SMALLEST_SPREAD)
        for distance, spread in zip(distances, spreads, strict=True)
    )


def self_check(
    tokenizer: Tokenizer,
    *,
    complete: Complete | None,
    score: Score,
    max_model_len: int,
    dtype: str,
) -> CheckResult:
    """Compare the scoring path with itself and, where there is one, with the next-token path.

    The tolerance is in nats and by `dtype`; an unknown one, such as a quantised format, gets 0.3.
    What either path raises is raised, but for `WrongScoresError`, which is a failure.
    """
    try:
        return _compare(tokenizer, complete, score, max_model_len, dtype)
    except WrongScoresError as error:
        return CheckResult("failed", str(error))


def _compare(
    tokenizer: Tokenizer, complete: Complete | None, score: Score, max_model_len: int, dtype: str
) -> CheckResult:
    room = max_model_len - _LENGTH
    known = encode_with_leading(tokenizer, _TEXT)[: max(room, 0)]
    if len(known) < _LENGTH:
        return CheckResult("not checkable", f"max_model_len={max_model_len} is too short")
    tolerance = score_tolerance(dtype)
    whole, head, tail = score(
        [TokenSpan(known, 1), TokenSpan(known[:-2], 1), TokenSpan(known, len(known) - 2)]
    )
    problem = _find_implausible(whole.logprobs, len(known) - 1)
    if problem is not None:
        return CheckResult("failed", problem)
    parts = [*head.logprobs, *tail.logprobs]
    split = _find_largest_difference(whole.logprobs, parts)
    if split > tolerance:
        return CheckResult(
            "failed",
            f"a sequence scored in two parts differs by {split:.3g} nats from the whole "
            f"(tolerance {tolerance:g}): positions are shifted or tokens lost",
            split,
        )
    if complete is None:
        return CheckResult(
            "passed", "scored whole and in parts alike; no next-token path to compare", split
        )
    return _compare_next_tokens(known, complete(known, _LENGTH), score, tolerance)


def _compare_next_tokens(
    known: list[int], completion: GenerationOutput, score: Score, tolerance: float
) -> CheckResult:
    generated = completion.token_ids or []
    logprobs = completion.token_logprobs or []
    if not generated or len(generated) != len(logprobs):
        return CheckResult("not checkable", "the next-token path gave no log-probabilities")
    token_ids = [*known, *generated]
    (scored,) = score([TokenSpan(token_ids, len(known))])
    difference = _find_largest_difference(scored.logprobs, logprobs)
    if difference > tolerance:
        (whole,) = score([TokenSpan(token_ids, 1)])
        shift = _describe_shift(list(whole.logprobs), logprobs, len(known) - 1, tolerance)
        return CheckResult(
            "failed",
            f"scoring differs from the next-token path by {difference:.3g} nats (tolerance "
            f"{tolerance:g}){shift}",
            difference,
        )
    detail = f"{len(generated)} tokens scored as generated"
    if scored.is_greedy is False:
        if _find_smallest_gap(completion) > 2 * tolerance:
            return CheckResult(
                "failed", "greedily generated tokens are reported as not greedy when scored"
            )
        detail += "; one of them is as likely as another within the arithmetic"
    return CheckResult("passed", detail, difference)


def _find_smallest_gap(completion: GenerationOutput) -> float:
    """Distance of the chosen token from the next one, at the closest step."""
    ranked = [sorted(step.values()) for step in completion.top_logprobs or []]
    return min((step[-1] - step[-2] for step in ranked if len(step) > 1), default=math.inf)


def _find_implausible(logprobs: Sequence[float], expected: int) -> str | None:
    if len(logprobs) != expected:
        return f"{expected} tokens were to be scored and {len(logprobs)} log-probabilities came"
    if not all(math.isfinite(value) and value <= 1e-6 for value in logprobs):
        return f"log-probabilities must be finite and not positive, got {list(logprobs)}"
    if all(abs(value - logprobs[0]) < 1e-12 for value in logprobs):
        return f"all log-probabilities are {logprobs[0]!r}"
    return None


def _find_largest_difference(left: Sequence[float], right: Sequence[float]) -> float:
    if len(left) != len(right):
        return math.inf
    return max(abs(a - b) for a, b in zip(left, right, strict=True))


def _describe_shift(
    whole: list[float], expected: Sequence[float], at: int, tolerance: float
) -> str:
    for shift in (-2, -1, 1, 2):
        found = whole[at + shift : at + shift + len(expected)]
        overlap = min(len(found), len(expected))
        if (
            overlap > 1
            and _find_largest_difference(found[:overlap], expected[:overlap]) <= tolerance
        ):
            return f"; the values are shifted by {shift:+d}"
    return ""
