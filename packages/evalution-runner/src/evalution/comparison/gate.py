"""The decision on a release: losses of a candidate, held against the margins of a policy.

Each check is a test of non-inferiority. It passes if the 95 % interval of the loss lies within the
margin; as all checks have to pass, their number makes no wrong release likelier. It blocks if the
interval lies beyond the margin, at a confidence that allows for the number of checks (Bonferroni).
Between the two, rows are too few. Decision 0027 has the rates of wrong verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal
from xml.etree import ElementTree

from evalution.comparison.comparison import (
    Comparison,
    MetricComparison,
    Pairing,
    SuiteComparison,
    find_missing_samples,
)
from evalution.comparison.policy import Policy, SuitePolicy
from evalution.comparison.significance import make_score_interval, widen_end
from evalution.fidelity.result import Estimate, FidelityResult, SuiteFidelity
from evalution.results import MetricResult, is_other_model
from evalution.scoring.intervals import CONFIDENCE
from evalution_core import ConfigurationError
from evalution_core.plugins import did_you_mean

SCHEMA_VERSION = 1
_MOST_ROWS = 1_000_000
_DONE = "done"
SIDES = ("baseline", "candidate")
"""Words for the two runs."""
_JUDGING = frozenset(
    {"choices", "filters", "judge", "metrics", "pattern", "rubric", "scale", "target_filters"}
)
"""Options of a suite that decide which answers are right."""

Verdict = Literal["ship", "undecided", "block"]


@dataclass(frozen=True, slots=True)
class Check:
    """One loss held against its margin.

    `loss` is positive where the candidate is worse, and `interval` contains it with 95 %
    confidence; both are None where the reason says why there is none.
    """

    subject: str
    figure: str
    margin: float
    loss: float | None
    interval: tuple[float, float] | None
    verdict: Verdict
    reason: str
    advisory: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """All checks, and the verdict of those that aren't advisory: the worst of theirs."""

    checks: Sequence[Check]

    @property
    def verdict(self) -> Verdict:
        verdicts = {check.verdict for check in self.checks if not check.advisory}
        return (
            "block" if "block" in verdicts else "undecided" if "undecided" in verdicts else "ship"
        )

    def to_dict(self) -> dict[str, Any]:
        checks = [asdict(check) for check in self.checks]
        return {"schema_version": SCHEMA_VERSION, "verdict": self.verdict, "checks": checks}

    def to_junit(self) -> str:
        """Return JUnit XML: a check that blocks is a failure, an undecided one an error.

        One that is advisory is skipped unless it passes.
        """
        root = ElementTree.Element("testsuite", name="evalution gate", tests=str(len(self.checks)))
        for check in self.checks:
            case = ElementTree.SubElement(root, "testcase", classname=check.subject)
            case.set("name", check.figure)
            if check.verdict != "ship":
                kind = {"block": "failure", "undecided": "error"}[check.verdict]
                kind = "skipped" if check.advisory else kind
                ElementTree.SubElement(case, kind, message=check.reason)
        for kind in ("failure", "error", "skipped"):
            root.set(kind + "s" * (kind != "skipped"), str(len(root.findall(f"*/{kind}"))))
        return ElementTree.tostring(root, encoding="unicode") + "\n"


def decide(
    policy: Policy,
    comparison: Comparison | None = None,
    measurements: Sequence[FidelityResult] = (),
) -> Decision:
    """Hold a candidate against a policy.

    Args:
        policy: the margins.
        comparison: the baseline's run on the left, the candidate's on the right.
        measurements: fidelity of the candidate.

    Raises:
        ConfigurationError: the policy names a suite or a metric that the baseline lacks, has no
            margin for what was given, a margin for what wasn't, or no check that decides; or the
            baseline's run isn't finished.
    """
    _check_given(policy, comparison, measurements)
    of_runs = [] if comparison is None else [*_list_losses(policy, comparison)]
    run = {} if comparison is None else comparison.right.engine
    distances = [loss for found in measurements for loss in _list_distances(policy, found, run)]
    unjudged = ["the two runs"] if comparison is not None and not of_runs else []
    unjudged += ["the fidelity measurements"] if measurements and not distances else []
    if unjudged or not (losses := [*of_runs, *distances]):
        raise ConfigurationError(
            f"the policy has no margin for {' and '.join(unjudged) or 'what was given'}: `loss` "
            "or `suites` are for runs, `kl`, `log_ppl_ratio` and `other_top` for fidelity "
            "measurements; for instance --loss 0.01"
        )
    if all(loss.advisory for loss in losses):
        raise ConfigurationError(
            "every check is advisory, so that none decides; leave `advisory` out of one at least"
        )
    deciding = sum(not loss.advisory for loss in losses)
    return Decision([loss.check(1 if loss.advisory else deciding) for loss in losses])


def _check_given(
    policy: Policy, comparison: Comparison | None, measurements: Sequence[FidelityResult]
) -> None:
    """Raise `ConfigurationError` for a margin that nothing given is held against."""
    of_runs = {"loss": policy.loss, "suites": policy.suites or None}
    of_measurements = {
        "kl": policy.kl,
        "log_ppl_ratio": policy.log_ppl_ratio,
        "other_top": policy.other_top,
    }
    for margins, is_given, lacking in (
        (of_runs, comparison is not None, "runs were given; name their folders"),
        (of_measurements, bool(measurements), "fidelity measurement was given; name its folder"),
    ):
        named = next((name for name, margin in margins.items() if margin is not None), None)
        if named is not None and not is_given:
            raise ConfigurationError(
                f"the policy has {named!r}, and no {lacking}, or leave it out of the policy"
            )
    if comparison is not None and policy.loss is not None and comparison.left.status != _DONE:
        raise ConfigurationError(
            f"the baseline's run is {comparison.left.status}, and `loss` is for all of its suites; "
            "finish it, or name those that count in `suites` of the policy"
        )


@dataclass(frozen=True, slots=True)
class _Loss:
    """A loss before it is judged; `obstacle` says why it can't be, `excess` why it needn't.

    `parts` counts the independent parts that the interval stands on, each a `part`; its t has
    `freedom`, and it is of the logarithm if the loss `is_positive`. `changed` are the parts that
    lost and won where the interval is, times some number, the score interval of their shares.
    """

    subject: str
    figure: str
    margin: float
    loss: float | None
    interval: tuple[float, float] | None
    parts: int
    freedom: float
    obstacle: str | None = None
    excess: str | None = None
    advisory: bool = False
    part: str = "row"
    is_positive: bool = False
    changed: tuple[int, int] | None = None

    def check(self, count: int) -> Check:
        """Judge it as one of `count` checks."""
        verdict, reason = self._judge(count)
        shown = (self.loss, self.interval)
        return Check(self.subject, self.figure, self.margin, *shown, verdict, reason, self.advisory)

    def _judge(self, count: int) -> tuple[Verdict, str]:
        if self.excess is not None:
            return "block", self.excess
        if self.loss is None or self.interval is None or self.obstacle is not None:
            return "undecided", self.obstacle or "there are too few rows for an interval"
        margin = format_loss(self.margin)
        low, high = self.interval
        if high <= self.margin:
            return "ship", f"loses at most {format_loss(high)}, within {margin}{self._doubt()}"
        least = self._find_least(low, count)
        if least > self.margin:
            return "block", f"loses at least {format_loss(least)}, more than {margin}"
        ends = f"between {format_loss(low)} and {format_loss(high)}"
        return "undecided", f"loses {ends}, so that {margin} can't be judged; {self._advise(count)}"

    def _doubt(self) -> str:
        """Return what a measurement of so many documents can't have seen."""
        if self.part != "document":
            return ""
        share = 1 - ((1 - CONFIDENCE) / 2) ** (1 / self.parts)
        return f"; damage that fewer than {share:.2g} of all documents have may be unseen"

    def _find_least(self, low: float, count: int, growth: float = 1.0) -> float:
        """Return the end that blocks beyond the margin, of `growth` times as many parts."""
        assert self.loss is not None
        confidence, freedom = 1 - (1 - CONFIDENCE) / count, self.freedom * growth
        return widen_end(self.loss, low, confidence, freedom, is_positive=self.is_positive)

    def _advise(self, count: int) -> str:
        """Return how many parts would settle it if the loss, and the shares that change, stayed."""
        assert self.loss is not None
        is_within = self.loss < self.margin

        def is_settled(parts: int) -> bool:
            low, high = self._predict(parts)
            if is_within:
                return high <= self.margin
            return self._find_least(low, count, parts / self.parts) > self.margin

        few, many = self.parts, self.parts + 1
        while many <= _MOST_ROWS and not is_settled(many):
            few, many = many, 2 * many
        if many > _MOST_ROWS:
            return f"the loss is at the margin, where more {self.part}s don't help"
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (few, middle) if is_settled(middle) else (middle, many)
        step = 10 ** max(0, math.floor(math.log10(many)) - 1)
        return f"about {math.ceil(many / step) * step:,} {self.part}s would do"

    def _predict(self, parts: int) -> tuple[float, float]:
        """Return the interval of so many parts, of which as large shares change."""
        assert self.loss is not None
        assert self.interval is not None
        if self.changed is None:
            scale = math.sqrt(self.parts / parts)
            low, high = (self.loss + scale * (end - self.loss) for end in self.interval)
            return low, high
        lost, won = self.changed
        growth = parts / self.parts
        scale = self.interval[1] / make_score_interval(won, lost, self.parts)[1]
        low, high = make_score_interval(won * growth, lost * growth, parts)
        return scale * low, scale * high


def _list_losses(policy: Policy, comparison: Comparison) -> Iterator[_Loss]:
    baseline = {suite.name: suite for suite in comparison.left.suites}
    compared = {suite.name: suite for suite in comparison.suites}
    for name in policy.suites:
        if name not in baseline:
            raise ConfigurationError(
                f"the baseline has no suite {name!r}, which the policy names"
                f"{did_you_mean(name, baseline)} (suites: {', '.join(baseline) or 'none'})"
            )
    for name, suite in baseline.items():
        rule = policy.suites.get(name, SuitePolicy())
        margin = policy.loss if rule.loss is None else rule.loss
        if margin is None and name in policy.suites:
            raise ConfigurationError(
                f"suite {name!r} has no margin: give it `loss`, or the policy a general one"
            )
        if margin is None:
            continue
        metric = rule.metric or next(iter(suite.metrics), "")
        if metric not in suite.metrics:
            raise ConfigurationError(
                f"suite {name!r} has no metric {metric!r}{did_you_mean(metric, suite.metrics)} "
                f"(metrics: {', '.join(suite.metrics) or 'none'})"
            )
        _check_margin(name, metric, margin, suite.metrics[metric])
        found = compared.get(name)
        metrics = {} if found is None else {each.name: each for each in found.metrics}
        obstacle = f"the candidate's run lacks the suite; it is {comparison.right.status}"
        if found is not None:
            obstacle = _find_obstacle(comparison, found, metrics[metric])
        loss = _read_loss(name, metric, margin, metrics.get(metric))
        yield replace(loss, obstacle=obstacle, advisory=rule.advisory)


def _check_margin(suite: str, name: str, margin: float, metric: MetricResult) -> None:
    """Raise `ConfigurationError` for a margin that no loss can exceed."""
    ends = metric.row_range
    least, largest = ends if isinstance(ends, tuple) else (None, None)
    if least is not None and largest is not None and margin >= largest - least:
        raise ConfigurationError(
            f"no candidate could lose more than the margin of {margin:g} in suite {suite!r}: "
            f"{name} goes from {least:g} to {largest:g}, and one point of a hundred is "
            f"{(largest - least) / 100:g}"
        )


def _read_loss(suite: str, name: str, margin: float, metric: MetricComparison | None) -> _Loss:
    """Return the loss with its interval, and the rows or groups that both answered."""
    test = None if metric is None else metric.test
    if metric is None or test is None or test.difference is None:
        return _Loss(suite, name, margin, None, None, parts=0, freedom=0.0)
    sign, ends = -1.0 if metric.higher_is_better else 1.0, test.cautious_interval or test.interval
    if ends is not None:
        ends = min(sign * end for end in ends), max(sign * end for end in ends)
    parts, part = (test.pairs, "row") if test.groups is None else (test.groups, "group")
    freedom = test.pairs - 1.0 if test.freedom is None else test.freedom
    shown = _Loss(suite, name, margin, sign * test.difference + 0.0, ends, parts, freedom)
    changed = (test.left_better, test.right_better)
    is_share = test.name == "mcnemar" or not any(changed)
    return replace(shown, part=part, changed=changed if is_share else None)


def _find_obstacle(
    comparison: Comparison, suite: SuiteComparison, metric: MetricComparison
) -> str | None:
    """Return why the suite decides nothing, and what to do."""
    if rules := sorted(_JUDGING.intersection(suite.options)):
        return f"the sides are judged by other {' and '.join(rules)}; run both alike"
    if suite.grouped_by == "neither":
        return "the sides put the rows into groups that conflict; run both alike"
    if metric.right is None:
        return f"the candidate's run has no metric {metric.name!r}; run both sides alike"
    missing = None if metric.test else find_missing_samples(comparison, suite.name, SIDES)
    return missing or _find_row_obstacle(suite.rows, metric)


def _find_row_obstacle(rows: Pairing, metric: MetricComparison) -> str | None:
    """Return why the rows that both answered don't speak for all, and what to do."""
    if rows.other_rows:
        return f"{rows.other_rows} rows differ in their data; run both sides on the same rows"
    if rows.left_only:
        return f"{rows.left_only} rows of the baseline are missing; finish the candidate's run"
    if rows.right_only:
        return (
            f"{rows.right_only} rows of the candidate are missing in the baseline's run; finish "
            "it, or run both sides on the same rows"
        )
    if failed := max(rows.left_failed, rows.right_failed):
        return f"{failed} rows failed on a side; `evalution run … --retry-failed` asks them again"
    if metric.one_sided:
        return (
            f"{metric.one_sided} rows have a finite {metric.name} on one side only; run both sides "
            "alike, or name another `metric`"
        )
    if rows.paired and (metric.test is None or metric.test.difference is None):
        return (
            f"{metric.name} is no mean of its rows, so the loss has no interval; name another "
            "`metric`, make the suite `advisory`, or measure fidelity, whose log_ppl_ratio has one"
        )
    return None


def _list_distances(policy: Policy, found: FidelityResult, run: dict[str, Any]) -> Iterator[_Loss]:
    """Yield the losses of each suite of a measurement: the total would hide a small one's."""
    model = str(found.candidate.model.get("label") or found.candidate.model.get("path"))
    several = len(found.suites) > 1
    for part in found.suites if several else [found.overall]:
        label = f"{model}, {part.name}" if several else model
        for loss in _list_suite_distances(policy, part, label):
            if not is_other_model(run, found.candidate.engine):
                yield loss
                continue
            other = "the measurement is of another model than the candidate's run, by the "
            other += "`identity` of both; measure that model"
            yield replace(loss, excess=None, obstacle=other)


def _list_suite_distances(policy: Policy, found: SuiteFidelity, label: str) -> Iterator[_Loss]:
    side = found.candidate.divergence
    bound = _find_bound(found)
    kl = "kl beyond the control" if found.contrast else "kl"
    impossible, excluded = _find_excess(found)
    for figure, margin, loss, obstacle, excess in (
        (kl, policy.kl, found.contrast or side.kl, bound, impossible),
        ("log_ppl_ratio", policy.log_ppl_ratio, side.log_ppl_ratio, None, excluded),
        ("other_top", policy.other_top, _complement(side.same_top), None, None),
    ):
        if margin is not None:
            judged = _read_estimate(label, figure, margin, loss, found.documents, obstacle)
            judged = replace(judged, is_positive=figure == "kl")
            if failed := _find_failed(found):
                judged = replace(judged, obstacle=failed)
            if excess is not None:
                judged = replace(judged, loss=None, interval=None, excess=excess)
            yield judged


def _find_bound(found: SuiteFidelity) -> str | None:
    """Return why KL, or KL beyond the control, is no figure of the whole distributions."""
    remedy = "measure with engines that give whole distributions"
    if found.candidate.divergence.is_lower_bound and not found.contrast:
        return (
            "only the likeliest tokens were compared, so this is a lower bound, and the true value "
            f"may be above the margin; {remedy}"
        )
    arms = [arm for arm in (found.candidate, found.control) if arm is not None]
    if found.contrast and any(arm.divergence.is_lower_bound for arm in arms):
        return (
            "only the likeliest tokens were compared, and the difference of two lower bounds is "
            f"no bound; {remedy}"
        )
    return None


def _find_excess(found: SuiteFidelity) -> tuple[str | None, str | None]:
    """Return why KL beyond the control, and the perplexity, are infinite; None where they aren't.

    Their estimates are of the other positions.
    """
    side, contrast = found.candidate.divergence, found.contrast
    kl = ratio = None
    if side.infinite if contrast is None else math.isinf(contrast.value):
        kl = f"infinite: at {side.infinite:,} of {side.positions:,} positions the candidate calls "
        kl += "a token impossible that the reference doesn't"
        kl += "" if contrast is None else ", and at some of them the control doesn't"
    if side.excluded:
        ratio = f"infinite: at {side.excluded:,} of {side.positions:,} positions the candidate "
        ratio += "calls the text's own token impossible"
    return kl, ratio


def _find_failed(found: SuiteFidelity) -> str | None:
    arms = [found.candidate, found.control]
    if failed := sum(arm.divergence.failed for arm in arms if arm is not None):
        return f"{failed} windows failed and are in no figure; see the notes, and measure again"
    return None


def _read_estimate(
    subject: str, figure: str, margin: float, loss: Estimate, documents: int, obstacle: str | None
) -> _Loss:
    fields = (subject, figure, margin, loss.value, None, documents, loss.freedom)
    found, low, high = _Loss(*fields, part="document"), loss.low, loss.high
    if low is None or high is None:
        few = "fewer than two documents leave no interval; measure more rows"
        return replace(found, obstacle=few)
    if figure == "kl" and low > margin:
        obstacle = None  # a lower bound that is too large is too large
    if low == high != 0.0:
        obstacle = "all documents differ equally, so their spread is unknown; measure more rows"
    return replace(found, interval=(low, high), obstacle=obstacle)


def _complement(share: Estimate) -> Estimate:
    low, high = (None if end is None else 1 - end for end in (share.high, share.low))
    return Estimate(1 - share.value, low, high, share.freedom)


def format_loss(value: float) -> str:
    """Return a loss or a margin in three digits, without a negative zero."""
    return f"{value + 0.0:.3g}"
