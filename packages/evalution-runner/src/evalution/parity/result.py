"""Result of a parity check, as values and as the file `parity.json`."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from evalution.result_file import ResultFile

SCHEMA_VERSION = 1
NEAR_TIE = 1e-3
"""Two values closer than this, in nats, are a tie: arithmetic alone decides which is the larger."""


LEAST_DECADE = -17
"""Decade of the smallest differences that float64 can hold apart."""
_DECADES = 18


@dataclass(frozen=True, slots=True)
class DifferenceStats:
    """`count` absolute differences in nats; `p50` and `p99` by nearest rank.

    `infinite` counts those where one side alone says that a token is impossible; the other figures
    leave them out, and are 0 where nothing else is left.
    `decades` is a histogram for a logarithmic plot: how many are 0, then how many lie from 1e-17
    to below 1e-16, and so on, the last being 1 and more.
    """

    count: int
    infinite: int
    max: float
    mean: float
    p50: float
    p99: float
    decades: list[int]


def summarize_differences(differences: Iterable[float]) -> DifferenceStats:
    """The spread of absolute differences, infinite ones among them."""
    finite = array("d")
    infinite = 0
    for difference in differences:
        if math.isinf(difference):
            infinite += 1
        else:
            finite.append(difference)
    ordered = sorted(finite)
    count = len(ordered)
    return DifferenceStats(
        count + infinite,
        infinite,
        ordered[-1] if ordered else 0.0,
        math.fsum(ordered) / count if count else 0.0,
        _find_rank(ordered, 0.50),
        _find_rank(ordered, 0.99),
        _count_decades(ordered),
    )


def absolute_difference(left: float, right: float) -> float:
    """|left - right|; two tokens that both sides call impossible are no difference."""
    return 0.0 if left == right else abs(left - right)


def _find_rank(ordered: list[float], share: float) -> float:
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0.0


def _count_decades(values: Iterable[float]) -> list[int]:
    counts = [0] * (_DECADES + 1)
    for value in values:
        if value == 0.0:
            counts[0] += 1
        else:
            decade = min(max(math.floor(math.log10(value)), LEAST_DECADE), 0)
            counts[decade - LEAST_DECADE + 1] += 1
    return counts


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Differences that still count as the same.

    `logprob` is the largest difference of one token's log-probability, in nats; a sum may differ by
    as much for each of its tokens. `decisions` is how many choices, greedy marks and texts may
    differ, near ties of choices and texts aside.
    """

    logprob: float = 1e-4
    decisions: int = 0


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """A token whose log-probability differs much; None is minus infinity.

    `position` counts from the first token that was scored or generated.
    """

    row: int
    request: int
    position: int
    token_id: int | None
    left: float | None
    right: float | None


@dataclass(frozen=True, slots=True)
class ChoiceFlip:
    """A question for which the two sides find different choices the most likely.

    `gap` is how far apart either side holds these two choices at most, in nats; None is infinitely.
    """

    row: int
    left: int
    right: int
    gap: float | None
    is_near_tie: bool


@dataclass(frozen=True, slots=True)
class Divergence:
    """Place at which two completions part.

    `token` is the first token that differs, None where an engine gives no ids; `character` the
    first character. `gap` is between the two most likely tokens there, the larger of both sides';
    None where neither engine reports it: then a tie can't be recognised.
    """

    row: int
    request: int
    token: int | None
    character: int
    gap: float | None
    is_near_tie: bool
    left: str
    right: str


@dataclass(slots=True)
class Uncompared:
    """Requests without a pair of answers to compare, by the reason.

    `cut_apart`: the two sides cut the context at different places, as `max_model_len` differs;
    `counted_apart`: they scored different numbers of tokens.
    """

    left_failed: int = 0
    right_failed: int = 0
    both_failed: int = 0
    cut_apart: int = 0
    counted_apart: int = 0
    first_failure: str | None = None


@dataclass(frozen=True, slots=True)
class SuiteParity:
    """The agreement of two engines over the requests of one suite.

    `tokens` spreads |Δlogprob| of single tokens, up to where texts part; None where an engine
    reports none. `sums` spreads it over whole requests. Lists hold the first or worst few,
    the numbers count all: `flips` and `divergences` leave ties out, which are `near_flips` and
    `near_divergences`; of `greedy_apart` it isn't known which are. `sum_per_token` is the largest
    difference of a sum, divided by its tokens. `points` are (left, right) values of tokens, evenly
    taken, for a plot.
    """

    name: str
    kind: Literal["generation", "loglikelihood", "rolling"]
    requests: int
    compared: int
    by_ids: int
    uncompared: Uncompared
    tokens: DifferenceStats | None
    sums: DifferenceStats | None
    sum_per_token: float
    choices: int
    flips: int
    near_flips: int
    greedy: int
    greedy_apart: int
    texts: int
    divergences: int
    near_divergences: int
    worst_tokens: list[TokenDifference]
    flip_list: list[ChoiceFlip]
    greedy_rows: list[int]
    divergence_list: list[Divergence]
    points: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class ParityResult:
    """Two engines asked the same: `left` is held to be right, `right` is what is checked.

    `left` and `right` hold `model` and `engine` as in `results.json`. `notes` are what a reader has
    to know, such as that ids may differ.
    """

    left: dict[str, Any]
    right: dict[str, Any]
    tolerance: Tolerance
    limit: int | None
    notes: list[str]
    suites: list[SuiteParity]
    timings: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_within(self) -> bool:
        """True if something was compared and all of it is within the tolerance."""
        return not self.complaints

    @property
    def complaints(self) -> list[str]:
        """Sentences on everything outside the tolerance."""
        found = [f"{suite.name}: {text}" for suite in self.suites for text in self._complain(suite)]
        decisions = sum(s.flips + s.greedy_apart + s.divergences for s in self.suites)
        if decisions > self.tolerance.decisions:
            allowed = self.tolerance.decisions
            found.append(
                f"decisions that differ, near ties of choices and texts aside: {decisions}, over "
                f"{allowed}"
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "is_within": self.is_within,
            "complaints": self.complaints,
            **asdict(self),
        }

    def _complain(self, suite: SuiteParity) -> Iterator[str]:
        missing, allowed = suite.uncompared, self.tolerance.logprob
        if not suite.compared:
            yield "nothing could be compared"
        if suite.tokens is not None and suite.tokens.max > allowed:
            yield f"a token's log-probability differs by {suite.tokens.max:.3g}, over {allowed:g}"
        if suite.sum_per_token > allowed:
            yield f"a sum differs by {suite.sum_per_token:.3g} per token, over {allowed:g}"
        infinite = [spread.infinite for spread in (suite.tokens, suite.sums) if spread is not None]
        if any(infinite):
            yield f"values of minus infinity on one side alone: {max(infinite)}"
        if one_sided := missing.left_failed + missing.right_failed:
            yield f"requests that failed on one side alone: {one_sided}"
        if missing.both_failed > suite.compared > 0:
            yield f"requests that failed on both sides: {missing.both_failed} of {suite.requests}"
        if missing.cut_apart:
            yield f"requests cut at different places: {missing.cut_apart}"
        if missing.counted_apart:
            yield f"requests with another number of tokens on each side: {missing.counted_apart}"


PARITY_FILE = ResultFile(
    name="parity.json",
    type=ParityResult,
    what="a parity check",
    command="evalution parity SPEC --output DIR",
    newest_schema=SCHEMA_VERSION,
)
write_parity, read_parity = PARITY_FILE.write, PARITY_FILE.read
