"""`evalution gate`: what ships, what is blocked, and what the rows don't decide."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

import evalution
from evalution.cli.program import app
from evalution.comparison import compare
from evalution.comparison.gate import Check, Decision, decide
from evalution.comparison.policy import Policy, SuitePolicy, read_policy
from evalution.comparison.significance import clustered_t_test
from evalution.comparison.table import describe_decision, make_gate_table
from evalution.fidelity.measurement import FidelityOptions, measure_fidelity
from evalution.fidelity.result import Arm, Estimate, FidelityResult
from evalution.fidelity.store import write_fidelity
from evalution.results import MetricResult, RunResult, SampleResult, SuiteResult
from evalution.runs.preflight import EngineAndModel
from evalution_core import ConfigurationError, Model
from evalution_enginekit.mock import Mock

Values = Sequence[float | None]


def make_run(values: Values, *, up: bool = True, score: float | None = None) -> RunResult:
    """A run with the suite `s`, whose rows have these values; None failed."""
    samples = [
        SampleResult("s", row, error="no answer")
        if value is None
        else SampleResult("s", row, metrics={"acc": value})
        for row, value in enumerate(values)
    ]
    known = [value for value in values if value is not None]
    metric = MetricResult(sum(known) / len(known) if score is None else score, None, up, len(known))
    counts = len(values), len(values) - len(known), None, len(values), 0.0
    suite = SuiteResult("s", "T", {}, {"acc": metric}, *counts, kept_samples=samples)
    return RunResult({}, {}, {}, {}, status="done", suites=[suite])


def judge(before: Values, after: Values, loss: float, **given: Any) -> Check:
    found = compare(make_run(before, **given), make_run(after, **given))
    (check,) = decide(Policy(loss=loss), found).checks
    return check


def test_loss_within_the_margin_ships() -> None:
    check = judge([1.0] * 990 + [0.0] * 10, [1.0] * 989 + [0.0] * 11, 0.01)
    assert check.verdict == "ship"
    assert check.loss == pytest.approx(0.001)
    assert check.reason == "loses at most 0.00564, within 0.01"


def test_loss_beyond_the_margin_is_blocked() -> None:
    check = judge([1.0] * 1000, [1.0] * 950 + [0.0] * 50, 0.01)
    assert check.verdict == "block"
    assert check.reason == "loses at least 0.0381, more than 0.01"


def test_too_few_rows_decide_nothing_and_their_number_is_advised() -> None:
    check = judge([1.0] * 100, [1.0] * 98 + [0.0] * 2, 0.03)
    assert check.verdict == "undecided"
    assert check.reason == (
        "loses between -0.0177 and 0.07, so that 0.03 can't be judged; about 1,200 rows would do"
    )
    at = judge([1.0] * 100, [1.0] * 98 + [0.0] * 2, 0.02)
    assert at.reason.endswith("the loss is at the margin, where more rows don't help")


@pytest.mark.parametrize(
    ("rows", "lost", "margin", "advised"),
    [
        (100, 2, 0.03, 1200),
        (350, 0, 0.01, 390),
        (1000, 23, 0.02, 8400),
        (1000, 23, 0.03, 2300),
        (20, 0, 0.02, 190),
        (7, 2, 0.01, 15),
        (10, 1, 0.2, 62),
    ],
)
def test_as_many_rows_as_advised_would_do(
    rows: int, lost: int, margin: float, advised: int
) -> None:
    check = judge([1.0] * rows, [0.0] * lost + [1.0] * (rows - lost), margin)
    assert check.reason.endswith(f"about {advised:,} rows would do")
    for share, is_decided in ((1.2, True), (0.8, False), *[(1.0, True)] * (not lost)):
        count = round(share * advised)
        wrong = round(count * lost / rows)
        more = judge([1.0] * count, [0.0] * wrong + [1.0] * (count - wrong), margin)
        assert (more.verdict != "undecided") == is_decided


def test_few_graded_rows_that_hardly_change_prove_little() -> None:
    assert judge([0.5] * 5, [0.5] * 4 + [0.49], 0.02).verdict == "undecided"
    assert judge([0.5] * 2, [0.5, 0.49999], 0.5).verdict == "undecided"
    assert judge([0.5] * 500, [0.5] * 400 + [0.49] * 100, 0.02).verdict == "ship"
    assert judge([0.5] * 500, [0.45] * 500, 0.02).verdict == "block"
    for change in (0.0, 0.001):  # 3.84/(n + 3.84) is what rows without a change prove
        after = [0.5] * 499 + [0.5 - change]
        assert judge([0.5] * 500, after, 0.0075).verdict == "undecided"
        assert judge([0.5] * 500, after, 0.0077).verdict == "ship"
    groups = [number // 4 for number in range(20)]
    test = clustered_t_test([0.5] * 20, [0.5] * 19 + [0.49], groups, higher_is_better=True)
    assert test.interval is not None
    assert test.interval[0] > -0.01
    assert test.cautious_interval is not None
    assert test.cautious_interval[0] < -0.3


def test_loss_of_an_error_rate_is_its_rise() -> None:
    check = judge([0.0] * 1000, [1.0] * 50 + [0.0] * 950, 0.01, up=False)
    assert (check.verdict, check.loss) == ("block", 0.05)


def test_gain_ships_and_is_a_negative_loss() -> None:
    check = judge([0.5, 0.25] * 50, [0.75, 0.75] * 50, 0.0)
    assert check.verdict == "ship"
    assert check.loss == pytest.approx(-0.375)


def test_equal_scores_ship_if_they_are_of_many_rows() -> None:
    assert judge([0.5, 0.25] * 2, [0.5, 0.25] * 2, 0.01).verdict == "undecided"
    assert judge([0.5, 0.25] * 200, [0.5, 0.25] * 200, 0.01).verdict == "ship"


def test_scale_that_reaches_below_the_observed_scores_counts_as_a_whole() -> None:
    left, right = make_run([0.0] * 400), make_run([0.0] * 400)
    for run in (left, right):
        metrics = run.suites[0].metrics
        metrics["acc"] = replace(metrics["acc"], row_range=(-5.0, 0.0))
    (check,) = decide(Policy(loss=0.02), compare(left, right)).checks
    assert check.verdict == "undecided"  # 3.84/403.84 of a scale of 5
    assert check.interval == pytest.approx((-0.0476, 0.0476), abs=1e-4)
    assert decide(Policy(loss=0.048), compare(left, right)).verdict == "ship"


def test_row_with_a_score_on_one_side_only_leaves_a_suite_undecided() -> None:
    left, right = make_run([1.0] * 400), make_run([1.0] * 400)
    right.suites[0].kept_samples = [
        replace(sample, metrics={}) if sample.index == 3 else sample
        for sample in right["s"].samples
    ]
    (check,) = decide(Policy(loss=0.1), compare(left, right)).checks
    assert (check.verdict, check.reason) == (
        "undecided",
        "1 rows have a finite acc on one side only; run both sides alike, or name another `metric`",
    )


def test_score_whose_rows_have_none_is_no_mean_of_them() -> None:
    left, right = make_run([1.0] * 400), make_run([1.0] * 400)
    for run in (left, right):
        samples = [replace(sample, metrics={}) for sample in run["s"].samples]
        run.suites[0].kept_samples = samples
    (check,) = decide(Policy(loss=0.1), compare(left, right)).checks
    assert check.reason.startswith("acc is no mean of its rows, so the loss has no interval")


def test_loss_of_nothing_has_no_sign() -> None:
    check = judge([1.0] * 400, [1.0] * 400, 0.1)
    negative = replace(check, loss=-0.0, interval=(-0.0, 0.1))
    cells = [[*column.cells] for column in make_gate_table(Decision([negative])).columns]
    assert [cell for (cell,) in cells[2:4]] == ["0", "0 to 0.1"]


def test_file_of_samples_that_is_missing_is_named() -> None:
    left, right = make_run([1.0] * 9), make_run([1.0] * 9)
    right.suites[0].kept_samples = None
    (check,) = decide(Policy(loss=0.1), compare(left, right)).checks
    assert check.verdict == "undecided"
    assert check.reason == "the candidate's samples.jsonl is missing, so its rows can't be compared"


@pytest.mark.parametrize(
    ("before", "after", "given", "reason"),
    [
        ([1.0, 1.0, 1.0], [1.0, 1.0, None], {}, "1 rows failed on a side; `evalution run"),
        ([1.0, 1.0, 1.0], [1.0, 1.0], {}, "1 rows of the baseline are missing; finish the cand"),
        ([1.0, 1.0], [1.0, 1.0, 0.0], {}, "1 rows of the candidate are missing in the baseline's"),
        ([0.5, 0.2], [0.5, 0.1], {"score": 9.0}, "acc is no mean of its rows, so the loss has no"),
        ([0.5], [0.25], {}, "there are too few rows for an interval"),
    ],
)
def test_rows_that_speak_for_no_suite_decide_nothing(
    before: Values, after: Values, given: dict[str, Any], reason: str
) -> None:
    check = judge(before, after, 1.0, **given)
    assert check.verdict == "undecided"
    assert check.reason.startswith(reason)


def test_suite_that_the_candidate_lacks_decides_nothing() -> None:
    candidate = replace(make_run([1.0]), suites=[], status="interrupted")
    decision = decide(Policy(loss=0.1), compare(make_run([1.0]), candidate))
    assert [*describe_decision(decision)] == [
        "undecided: s, acc: the candidate's run lacks the suite; it is interrupted"
    ]


def test_metric_that_the_candidate_lacks_decides_nothing() -> None:
    candidate = make_run([1.0] * 50)
    candidate.suites[0].metrics["f1"] = candidate.suites[0].metrics.pop("acc")
    (check,) = decide(Policy(loss=0.1), compare(make_run([1.0] * 50), candidate)).checks
    assert check.verdict == "undecided"
    assert check.reason == "the candidate's run has no metric 'acc'; run both sides alike"


def test_advisory_suite_is_shown_and_decides_nothing() -> None:
    left, right = make_run([1.0] * 99), make_run([0.0] * 99)
    other = replace(left.suites[0], name="other")
    found = compare(
        replace(left, suites=[*left.suites, other]), replace(right, suites=[*right.suites, other])
    )
    policy = Policy(loss=0.1, suites={"s": SuitePolicy(advisory=True)})
    decision = decide(policy, found)
    assert (decision.checks[0].verdict, decision.verdict) == ("block", "ship")
    with pytest.raises(ConfigurationError, match="every check is advisory, so that none decides"):
        decide(policy, compare(left, right))


def test_blocking_allows_for_the_number_of_checks() -> None:
    before, after = [1.0] * 1000, [1.0] * 977 + [0.0] * 23
    found = compare(make_run(before), make_run(after))
    alone = decide(Policy(loss=0.012), found)
    others = [replace(suite, name=str(n)) for n in range(20) for suite in make_run(before).suites]
    left, right = make_run(before), make_run(after)
    many = compare(
        replace(left, suites=left.suites + others), replace(right, suites=right.suites + others)
    )
    assert alone.verdict == "block"
    assert decide(Policy(loss=0.012), many).verdict == "undecided"
    advisory = {suite.name: SuitePolicy(advisory=True) for suite in others}
    assert decide(Policy(loss=0.012, suites=advisory), many).verdict == "block"


@pytest.fixture(scope="module")
def measurement() -> FidelityResult:
    side = EngineAndModel(Mock(), Model("m"))
    suite = evalution.Perplexity(data=[{"text": f"{n} words"} for n in range(9)], text="text")
    return measure_fidelity(side, side, [suite], FidelityOptions(seeks_control=False))


def with_kl(
    found: FidelityResult, kl: Estimate, *, bound: bool = False, contrast: Estimate | None = None
) -> FidelityResult:
    arm = found.overall.candidate
    divergence = replace(arm.divergence, kl=kl, is_lower_bound=bound)
    candidate = replace(arm, divergence=divergence)
    return replace(found, overall=replace(found.overall, candidate=candidate, contrast=contrast))


@pytest.mark.parametrize(
    ("kl", "bound", "verdict"),
    [
        (Estimate(0.002, 0.001, 0.003), False, "ship"),
        (Estimate(0.02, 0.015, 0.03), False, "block"),
        (Estimate(0.008, 0.005, 0.012), False, "undecided"),
        (Estimate(0.002, 0.001, 0.003), True, "undecided"),
        (Estimate(0.02, 0.015, 0.03), True, "block"),
        (Estimate(0.002, None, None), False, "undecided"),
        (Estimate(0.002, 0.002, 0.002), False, "undecided"),
        (Estimate(0.02, 0.02, 0.02), False, "undecided"),
        (Estimate(0.0, 0.0, 0.0), False, "ship"),
    ],
)
def test_divergence_is_held_against_its_margin(
    measurement: FidelityResult, kl: Estimate, bound: bool, verdict: str
) -> None:
    found = with_kl(measurement, kl, bound=bound)
    assert decide(Policy(kl=0.01), measurements=[found]).verdict == verdict


def test_with_a_control_only_the_divergence_beyond_it_counts(measurement: FidelityResult) -> None:
    contrast = Estimate(0.001, 0.0005, 0.0015)
    found = with_kl(measurement, Estimate(0.1, 0.09, 0.11), contrast=contrast)
    (check,) = decide(Policy(kl=0.01), measurements=[found]).checks
    assert (check.figure, check.loss, check.verdict) == ("kl beyond the control", 0.001, "ship")


@pytest.mark.parametrize("side", ["candidate", "control"])
def test_difference_of_lower_bounds_decides_nothing(measurement: FidelityResult, side: str) -> None:
    contrast = Estimate(0.04, 0.03, 0.05)
    arm = measurement.overall.candidate
    bounded = replace(arm, divergence=replace(arm.divergence, is_lower_bound=True))
    arms = {"candidate": arm, "control": arm} | {side: bounded}
    found = replace(measurement, overall=replace(measurement.overall, contrast=contrast, **arms))
    (check,) = decide(Policy(kl=0.02), measurements=[found]).checks
    assert check.verdict == "undecided"
    assert (
        "the difference of two lower bounds is no bound; measure with engines that" in check.reason
    )


def test_further_checks_widen_the_interval_of_a_divergence_by_its_logarithm(
    measurement: FidelityResult,
) -> None:
    found = with_kl(measurement, Estimate(0.2, 0.04, 1.0, 4.0))
    policy = Policy(kl=0.01, log_ppl_ratio=1.0, other_top=1.0)
    check = decide(policy, measurements=[found]).checks[0]
    assert (check.verdict, check.reason) == ("block", "loses at least 0.0201, more than 0.01")


def test_infinite_divergence_is_blocked_unless_the_control_has_it_in_the_same_places(
    measurement: FidelityResult,
) -> None:
    arm = measurement.overall.candidate
    infinite = replace(arm, divergence=replace(arm.divergence, infinite=9, excluded=2))
    policy = Policy(kl=0.1, log_ppl_ratio=0.1, other_top=0.1)

    def check(control: Arm | None, beyond: float = 0.0) -> dict[str, tuple[str, str]]:
        contrast = None if control is None else Estimate(beyond, beyond, beyond)
        overall = replace(
            measurement.overall, candidate=infinite, control=control, contrast=contrast
        )
        found = decide(policy, measurements=[replace(measurement, overall=overall)])
        return {check.figure: (check.verdict, check.reason) for check in found.checks}

    for control, figure in ((None, "kl"), (arm, "kl beyond the control")):
        found = check(control, math.inf)
        assert found[figure][0] == found["log_ppl_ratio"][0] == "block"
        assert found[figure][1].startswith("infinite: at 9 of ")
        assert ("at some of them the control doesn't" in found[figure][1]) == (control is arm)
        assert "2 of " in found["log_ppl_ratio"][1]
        assert found["other_top"][0] == "ship"
    assert check(infinite)["kl beyond the control"][0] == "ship"


def test_what_ships_by_few_documents_says_what_they_can_not_show(
    measurement: FidelityResult,
) -> None:
    (check,) = decide(Policy(kl=0.01), measurements=[measurement]).checks
    assert check.verdict == "ship"
    assert check.reason.endswith(
        "; damage that fewer than 0.34 of all documents have may be unseen"
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"metrics": ["exact"], "filters": ["a"]}, "filters and metrics"),
        ({"judge": {"engine": "E", "scale": {"0": 1}}}, "judge"),
        ({"choices": ["a", "b"]}, "choices"),
    ],
)
def test_sides_that_are_judged_by_other_rules_decide_nothing(
    options: dict[str, Any], named: str
) -> None:
    before, after = make_run([1.0] * 400), make_run([1.0] * 400)
    loose = replace(after.suites[0], options=options)
    found = compare(before, replace(after, suites=[loose]))
    (check,) = decide(Policy(loss=0.05), found).checks
    assert (check.verdict, check.reason) == (
        "undecided",
        f"the sides are judged by other {named}; run both alike",
    )


def test_margin_that_no_loss_can_exceed_is_refused() -> None:
    before, after = make_run([1.0] * 400), make_run([0.0] * 400)
    metrics = before.suites[0].metrics
    metrics["acc"] = replace(metrics["acc"], row_range=(0.0, 1.0))
    found = compare(before, after)
    with pytest.raises(ConfigurationError) as caught:
        decide(Policy(loss=1.0), found)
    assert str(caught.value) == (
        "no candidate could lose more than the margin of 1 in suite 's': acc goes from 0 to 1, and "
        "one point of a hundred is 0.01"
    )
    assert decide(Policy(loss=0.9), found).verdict == "block"


def test_each_suite_of_a_measurement_is_held_against_the_margin(
    measurement: FidelityResult,
) -> None:
    good = with_kl(measurement, Estimate(0.001, 0.0005, 0.002))
    bad = with_kl(measurement, Estimate(0.08, 0.075, 0.085))
    suites = [replace(found.overall, name=name) for found, name in ((good, "a"), (bad, "b"))]
    found = decide(Policy(kl=0.05), measurements=[replace(good, suites=suites)])
    assert [(check.subject, check.verdict) for check in found.checks] == [
        ("m, a", "ship"),
        ("m, b", "block"),
    ]


@pytest.mark.parametrize(
    ("engine", "verdict"),
    [
        ({"name": "E", "identity": {"weights": "a", "config": "c"}}, "ship"),
        ({"name": "E", "identity": {"weights": "b", "config": "c"}}, "undecided"),
        ({"name": "E", "identity": {"other": "a", "config": "c"}}, "undecided"),
        ({"name": "F", "identity": {"other": "a", "config": "c"}}, "ship"),
        ({"name": "F", "identity": {"weights": "b"}}, "undecided"),
        ({"name": "E", "identity": None}, "ship"),
        ({}, "ship"),
    ],
)
def test_measurement_of_another_model_decides_nothing(
    measurement: FidelityResult, engine: dict[str, Any], verdict: str
) -> None:
    left, right = make_run([1.0] * 99), replace(make_run([1.0] * 99), engine=engine)
    measured = {"name": "E", "identity": {"weights": "a", "config": "c"}}
    found = with_kl(measurement, Estimate(0.002, 0.001, 0.003))
    found = replace(found, candidate=replace(found.candidate, engine=measured))
    *_, check = decide(Policy(loss=0.1, kl=0.01), compare(left, right), [found]).checks
    assert check.verdict == verdict
    assert ("is of another model than the candidate's run" in check.reason) == (verdict != "ship")


def test_failed_windows_leave_a_measurement_undecided(measurement: FidelityResult) -> None:
    arm = measurement.overall.candidate
    broken = replace(arm, divergence=replace(arm.divergence, failed=1))
    overall = replace(measurement.overall, candidate=broken)
    found = decide(
        Policy(kl=0.1, other_top=0.1), measurements=[replace(measurement, overall=overall)]
    )
    assert {check.verdict for check in found.checks} == {"undecided"}
    assert "1 windows failed and are in no figure" in found.checks[0].reason


def test_few_degrees_of_freedom_widen_a_measurements_interval_further(
    measurement: FidelityResult,
) -> None:
    policy = Policy(kl=0.01, log_ppl_ratio=1.0, other_top=1.0)

    def judge(freedom: float) -> str:
        found = with_kl(measurement, Estimate(0.02, 0.0105, 0.0295, freedom))
        return decide(policy, measurements=[found]).checks[0].verdict

    assert (judge(30.0), judge(1.0)) == ("undecided", "undecided")
    found = with_kl(measurement, Estimate(0.02, 0.014, 0.026, 30.0))
    assert decide(policy, measurements=[found]).checks[0].verdict == "block"
    found = with_kl(measurement, Estimate(0.02, 0.014, 0.026, 1.0))
    assert decide(policy, measurements=[found]).checks[0].verdict == "undecided"


def test_policy_without_a_margin_for_what_is_given_is_refused(measurement: FidelityResult) -> None:
    with pytest.raises(ConfigurationError, match="`loss` or `suites` are for runs, `kl`, "):
        decide(Policy(), measurements=[measurement])


def test_margin_that_nothing_is_held_against_is_refused(measurement: FidelityResult) -> None:
    runs = compare(make_run([1.0] * 99), make_run([1.0] * 99))
    with pytest.raises(ConfigurationError, match="'kl', and no fidelity measurement was given; na"):
        decide(Policy(loss=0.1, kl=1.0), runs)
    for policy in (Policy(loss=0.1, kl=1.0), Policy(suites={"s": SuitePolicy(loss=1)}, kl=1.0)):
        with pytest.raises(ConfigurationError, match="and no runs were given; name their folders"):
            decide(policy, measurements=[measurement])


def test_baseline_that_is_not_finished_is_refused() -> None:
    runs = compare(replace(make_run([1.0] * 99), status="failed"), make_run([1.0] * 99))
    with pytest.raises(ConfigurationError, match="the baseline's run is failed, and `loss` is for"):
        decide(Policy(loss=0.1), runs)
    assert decide(Policy(suites={"s": SuitePolicy(loss=0.1)}), runs).verdict == "ship"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "los: 1",
            r"Policy has no option 'los'; did you mean 'loss'\? \(options: loss,",
        ),
        ("loss: -1", r"option 'loss' of the gate's Policy must be at least 0.0, got -1"),
        ("suites: {s: {metrics: acc}}", r"SuitePolicy has no option 'metrics'; did you mean 'me"),
        ("suites: {s: 1}", r"suite 's' of .*policy.yaml must be a mapping of names to values, but"),
        ("suites: {t: {loss: 1}}", r"the baseline has no suite 't', which the policy names"),
        (
            "suites: {s: {metric: acc}}",
            r"suite 's' has no margin: give it `loss`, or the policy a general one",
        ),
        ("suites: {s: {advisory: true}}", r"suite 's' has no margin: give it `loss`"),
        (
            "suites: {s: {loss: 1, metric: ac}}",
            r"no metric 'ac'; did you mean 'acc'\?",
        ),
    ],
)
def test_wrong_policy_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message):
        decide(read_policy(path), compare(make_run([1.0]), make_run([1.0])))


def test_junit_has_a_failure_for_what_blocks_and_an_error_for_the_undecided() -> None:
    wrong = make_run([0.0] * 99).suites[0]
    suites = [replace(wrong, name=name) for name in ("blocked", "advisory")]
    few = replace(make_run([1.0] * 9).suites[0], name="few")
    right = [replace(make_run([1.0] * 99).suites[0], name=n) for n in ("blocked", "advisory")]
    baseline = replace(make_run([1.0]), suites=[*right, few])
    candidate = replace(make_run([1.0]), suites=[*suites, few])
    policy = Policy(loss=0.01, suites={"advisory": SuitePolicy(advisory=True)})
    root = ElementTree.fromstring(decide(policy, compare(baseline, candidate)).to_junit())
    assert {case.get("classname"): [part.tag for part in case] for case in root} == {
        "blocked": ["failure"],
        "advisory": ["skipped"],
        "few": ["error"],
    }
    assert (root.get("failures"), root.get("errors"), root.get("skipped")) == ("1", "1", "1")


def test_command_prints_the_checks_and_leaves_with_the_verdicts_status(
    tmp_path: Path, measurement: FidelityResult
) -> None:
    suite = evalution.Generation(
        data=[{"q": f"{n}?", "a": "2"} for n in range(9)], prompt="{q}", target="a"
    )
    more = replace(suite, name="more")
    for name, suites in (("a", [suite]), ("b", [suite, more])):
        evalution.run(engine=Mock(), model="m", tests=suites, output=tmp_path / name)
    (tmp_path / "f").mkdir()
    write_fidelity(measurement, tmp_path / "f")
    folders = [str(tmp_path / name) for name in ("a", "b", "f")]

    def call(*words: str) -> Result:
        return CliRunner().invoke(app, ["gate", *folders, *words])

    done = call("--loss", "0.5", "--kl", "0.1", "--junit", str(tmp_path / "a" / "results.json"))
    assert done.exit_code == 2
    assert "results.json is there already, and no JUnit; name another --junit" in done.output
    (tmp_path / "gate.xml").write_text("<testsuite/>")
    done = call("--loss", "0.5", "--kl", "0.1", "--junit", str(tmp_path / "gate.xml"))
    assert done.exit_code == 0
    remark = "only in the candidate run: more"
    assert {"baseline:", "candidate:"} < {line.split(" ")[0] for line in done.output.splitlines()}
    assert remark in done.output.splitlines()
    *_, verdict, doubt = done.output.splitlines()
    assert verdict == "ship: every loss is within its margin (2 checks)"
    assert doubt == "m, kl: damage that fewer than 0.34 of all documents have may be unseen"
    assert ElementTree.parse(tmp_path / "gate.xml").getroot().get("tests") == "2"
    assert call("--loss", "0", "--kl", "1").exit_code == 4
    found = json.loads(call("--loss", "0", "--kl", "1", "--json").stdout)
    assert (found["verdict"], found["remarks"]) == ("undecided", [remark])
    for option, unjudged in (("--kl", "the two runs"), ("--loss", "the fidelity measurements")):
        done = call(option, "0.9")
        assert done.exit_code == 2
        assert f"the policy has no margin for {unjudged}: `loss` or `suites`" in done.output
    alone = CliRunner().invoke(app, ["gate", folders[0], "--loss", "1"])
    assert alone.exit_code == 2
    assert "name two runs, the baseline's and the candidate's, not 1" in alone.output
    same = CliRunner().invoke(app, ["gate", folders[0], f"{folders[0]}/../a", "--loss", "1"])
    assert same.exit_code == 2
    assert "a is named as the baseline and as the candidate, which nothing could" in same.output
