"""What a parity check found, as values; `parity.json` holds the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from evalution.parity.spread import Spread

SCHEMA_VERSION = 1
NEAR_TIE = 1e-3
"""Two values closer than this, in nats, are a tie: arithmetic alone decides which is the larger."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What still counts as the same.

    `logprob` is the largest difference of one token's log-probability, in nats; a sum may differ by
    as much for each of its tokens. `decisions` is how many choices, greedy marks and texts may
    differ besides ties.
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

    `gap` is how far apart the left holds the two choices that it finds most likely, in nats; None
    is infinitely.
    """

    row: int
    left: int
    right: int
    gap: float | None
    is_near_tie: bool


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two completions part.

    `token` is the first token that differs, None where an engine tells no ids; `character` the
    first character. `gap` is between the two most likely tokens there, None where neither engine
    tells: then nobody can say whether it was a tie.
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
    tells none. `sums` spreads it over whole requests. Lists hold the first or worst few,
    the numbers count all: `flips`, `divergences` and `greedy_apart` leave ties out, which are
    `near_flips` and `near_divergences`. `sum_per_token` is the largest difference of a sum, divided
    by its tokens. `points` are (left, right) values of tokens, evenly taken, for a plot.
    """

    name: str
    kind: Literal["generation", "loglikelihood", "rolling"]
    requests: int
    compared: int
    by_ids: int
    uncompared: Uncompared
    tokens: Spread | None
    sums: Spread | None
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
        """Whether everything is within the tolerance, and something was compared."""
        return not self.complaints

    @property
    def complaints(self) -> list[str]:
        """What is outside the tolerance, a sentence each."""
        found = [f"{suite.name}: {text}" for suite in self.suites for text in self._of(suite)]
        decisions = sum(s.flips + s.greedy_apart + s.divergences for s in self.suites)
        if decisions > self.tolerance.decisions:
            allowed = self.tolerance.decisions
            found.append(f"decisions that differ and were no ties: {decisions}, over {allowed}")
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "is_within": self.is_within,
            "complaints": self.complaints,
            **asdict(self),
        }

    def _of(self, suite: SuiteParity) -> Iterator[str]:
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
        if missing.cut_apart:
            yield f"requests cut at different places: {missing.cut_apart}"
        if missing.counted_apart:
            yield f"requests with another number of tokens on each side: {missing.counted_apart}"
