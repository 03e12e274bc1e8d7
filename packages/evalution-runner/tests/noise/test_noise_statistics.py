from __future__ import annotations

import sys
from array import array

import pytest

import noise_alarms
from evalution.noise.result import Sampling
from evalution.noise.statistics import PassComparison, bound_chance, find_verdicts
from evalution.parity.agreement import Generated, Scored

APART = [[float((one < 6) != (other < 6)) for other in range(9)] for one in range(9)]
ONE_ODD = [[float((one == 0) != (other == 0)) for other in range(9)] for one in range(9)]


@pytest.mark.parametrize("rows", [1, 3, 50])
def test_rows_that_a_condition_parts_each_have_one_labelling_of_84(rows: int) -> None:
    assert bound_chance([APART] * rows, 6) == pytest.approx(84.0**-rows)


def test_rows_that_are_the_same_say_nothing() -> None:
    same = [[0.0] * 9] * 9
    assert bound_chance([same] * 5, 6) == 1.0
    assert bound_chance([same] * 5 + [APART], 6) == pytest.approx(1 / 84)


def test_an_odd_repeat_is_no_effect_of_the_condition() -> None:
    assert bound_chance([ONE_ODD] * 50, 6) == 1.0


def complete(text: str, ids: list[int], logprobs: list[float]) -> Generated:
    return Generated(text, array("q", ids), array("d", logprobs), None, None)


def test_texts_are_compared_up_to_where_they_part() -> None:
    base = {
        (0, 0, 0): complete("ab", [1, 2], [-1.0, -2.0]),
        (0, 1, 0): Scored(-1.0, 1, None, None),
    }
    changed = {
        (0, 0, 0): complete("ac", [1, 3], [-1.5, -9.0]),
        (0, 1, 0): Scored(-1.0, 1, None, None),
    }
    found, square = PassComparison([base, base], [changed], set()).summarize_changes()
    assert (found.largest, found.texts, found.rows, found.changed) == (0.5, 1, 1, 0.5)
    assert square == 0.125  # of two log-probabilities


@pytest.mark.parametrize(
    ("sampling", "verdicts"),
    [
        (Sampling(16, 4, 16, 0, 16, 1e-50, 0, 1e-150), []),
        (Sampling(16, 4, 13, 12, 1, 1e-2, 5, 1e-4), []),  # three of four changed by noise
        (Sampling(16, 4, 4, 4, 0, 1e-50, 0, 1e-150), ["seed ignored"]),
        (Sampling(16, 4, 16, 16, 0, 1e-3, 16, 1e-9), ["samples cloned"]),
        (Sampling(16, 4, 16, 16, 0, 1e-1, 16, 1e-3), []),  # a model that is nearly certain
        (Sampling(16, 4, 16, 16, 0, None, 16, None), []),
        (Sampling(16, 4, None, None, None, None, 16, 1e-9), ["samples cloned"]),
    ],
)
def test_samples_are_judged_by_their_own_chance(sampling: Sampling, verdicts: list[str]) -> None:
    same, _ = PassComparison([{}, {}], [{}], set()).summarize_repeats()
    assert find_verdicts(same, [], sampling) == ["deterministic", *verdicts]


@pytest.mark.parametrize("kind", noise_alarms.KINDS)
def test_clean_engine_is_not_accused(kind: str) -> None:
    assert noise_alarms.count_alarms(kind, runs=3, rows=8) == 0


def test_script_ends_with_the_number_of_alarms(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(noise_alarms, "CLEAN", set[str]())
    monkeypatch.setattr(sys, "argv", ["noise_alarms.py", "--runs", "1", "--rows", "3"])
    with pytest.raises(SystemExit) as ended:
        noise_alarms.main()
    assert ended.value.code == 1
    assert capsys.readouterr().out.endswith("false alarms: 4\n")
