"""Result of a fidelity measurement, as values and as the file `fidelity.json`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

SCHEMA_VERSION = 1


def _restore_infinity(value: Any) -> Any:
    return math.inf if value is None else value


Nats = Annotated[float, BeforeValidator(_restore_infinity)]
"""A figure that may be infinite, which is null in JSON."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over positions with its 95 % interval, clustered by document.

    `low` and `high` are None where fewer than two documents leave nothing to estimate them from;
    the t between them has `freedom` degrees of freedom.
    """

    value: Nats
    low: float | None
    high: float | None
    freedom: float = 1.0


@dataclass(frozen=True, slots=True)
class Divergence:
    """Distance of one side's distributions from those of the reference, over `positions`.

    All divergences are in nats; `kl` is KL(reference ‖ side), `reverse_kl` the other direction, and
    the Jensen-Shannon divergence `js` at most ln 2. Quantiles are of `kl` over positions, between
    two by linear interpolation; `top_share` is the part of the sum of `kl` that its largest
    hundredth carries.
    `rms_dp` is the root mean square of Δp of the token that stands in the text. `same_top` is the
    share of positions with the same most likely token, `top5_overlap` the mean share of tokens that
    the five most likely of both have in common. `log_ppl_ratio` is the mean of
    ln p(reference) - ln p(side) of the text's tokens: the logarithm of the ratio of perplexities.

    With `is_lower_bound`, only the most likely tokens were known on a side: `kl`, `reverse_kl` and
    `js` are lower bounds, and `covered` is the mean mass of the reference that was compared token
    by token. Figures that can't be known then are None.

    At `infinite` positions the side excludes a token that the reference doesn't, so that `kl` has
    no finite value; they count in the quantiles. At `excluded` of them it is the text's own token.
    At `reverse_infinite` positions the reference excludes a token that the side doesn't. Each mean
    is over the positions where its figure is finite. Positions of the `failed` windows, which a
    side gave no rows of or the reference no completion for, are in no figure.
    """

    positions: int
    kl: Estimate
    median: Nats
    p95: Nats
    p99: Nats
    p999: Nats
    maximum: Nats
    top_share: float
    reverse_kl: Estimate
    js: Estimate
    rms_dp: float
    same_top: Estimate
    top5_overlap: float
    log_ppl_ratio: Estimate
    entropy_reference: float | None
    entropy: float | None
    is_lower_bound: bool = False
    covered: float = 1.0
    infinite: int = 0
    excluded: int = 0
    failed: int = 0
    reverse_infinite: int = 0


@dataclass(frozen=True, slots=True)
class ChoiceFlips:
    """Questions of a choice suite that one side alone answers right.

    `changed` counts every question whose chosen answer differs, wrong ones among them.
    """

    questions: int
    changed: int
    right_to_wrong: int
    wrong_to_right: int


@dataclass(frozen=True, slots=True)
class GreedyDivergence:
    """Free-running greedy completions of both sides; `steps` are tokens.

    `same` counts completions without a difference, `first_steps` has the step of the first
    difference of each of the others.
    """

    prompts: int
    same: int
    first_steps: list[int]


@dataclass(frozen=True, slots=True)
class TopToken:
    """A token's text and its probability."""

    text: str
    probability: float


@dataclass(frozen=True, slots=True)
class WorstToken:
    """A position of large `kl`: the text before it, its token, and both sides' likeliest tokens."""

    document: int
    position: int
    kl: Nats
    before: str
    token: str
    reference_top: list[TopToken]
    top: list[TopToken]


@dataclass(frozen=True, slots=True)
class Bin:
    """Positions whose value lies from `low` to below `high`, and their mean `kl`."""

    low: float
    high: Nats
    positions: int
    kl: Nats


@dataclass(frozen=True, slots=True)
class Arm:
    """One side held against the reference: the candidate, or the control.

    `histogram` has bins of `kl` by decade and half decade, in nats; its first bin, from 0, has what
    is below the second. `by_position` and `by_entropy` are bins of the position in the window and
    of the reference's entropy in nats.
    """

    divergence: Divergence
    histogram: list[Bin]
    by_position: list[Bin]
    by_entropy: list[Bin]
    flips: ChoiceFlips | None = None
    greedy: GreedyDivergence | None = None
    worst: list[WorstToken] = field(default_factory=list[WorstToken])


@dataclass(frozen=True, slots=True)
class SuiteFidelity:
    """A suite, or a text: `documents` are its rows, or its groups of rows, which cluster intervals.

    `contrast` is the mean of the candidate's `kl` less the control's at the same positions, `texts`
    a digest of the suite's windows; None in an older result, and for all suites together.
    """

    name: str
    kind: Literal["generation", "loglikelihood", "rolling"]
    documents: int
    candidate: Arm
    control: Arm | None = None
    contrast: Estimate | None = None
    texts: str | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """A model on an engine, as in `results.json`; `bytes` is the size of its weights on disk."""

    model: dict[str, Any]
    engine: dict[str, Any]
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FidelityResult:
    """A candidate held against a reference, with the reference's model on its engine as control.

    `suites` has one entry for each suite, and `overall` all positions of all suites. `window` is
    the number of tokens that are fed at most, `top` how many tokens of a position are compared
    where not the whole vocabulary is. `notes` are what a reader has to know.
    """

    reference: Side
    candidate: Side
    control: Side | None
    vocabulary: int
    window: int
    top: int | None
    limit: int | None
    notes: list[str]
    suites: list[SuiteFidelity]
    overall: SuiteFidelity
    timings: dict[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}
