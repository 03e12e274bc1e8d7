"""The tables of decisions 0021, 0027 and 0029 come from scripts that run."""

from __future__ import annotations

import sys

import pytest

import gate_errors
import interval_coverage


def test_the_table_has_a_row_for_each_kind_and_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["interval_coverage.py", "--corpora", "2", "--sizes", "3"])
    interval_coverage.main()
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head == "| corpora | figure | 3 documents |"
    assert len(rows) == len(interval_coverage.KINDS) * len(interval_coverage.NAMES)
    assert all(row.endswith((" 0.0 % |", " 50.0 % |", " 100.0 % |")) for row in rows)


def test_the_table_of_groups_has_a_row_for_each_kind_and_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--of", "groups", "--corpora", "2", "--sizes", "3"]
    monkeypatch.setattr(sys, "argv", ["interval_coverage.py", *asked])
    interval_coverage.main()
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head == "| corpora | figure | 3 groups |"
    kinds, names = interval_coverage.GROUPED_KINDS, interval_coverage.GROUPED_NAMES
    assert len(rows) == len(kinds) * len(names)


def test_intervals_of_groups_hold_what_they_say_and_those_of_single_rows_do_not() -> None:
    unequal, corpora = interval_coverage.GROUPED_KINDS[2], 200
    shares = interval_coverage.measure_grouped_coverage(unequal, 30, corpora)
    *clustered, lower_end, single, single_lower_end = shares
    chance = 3 * (0.95 * 0.05 / corpora) ** 0.5
    assert all(abs(share - 0.95) <= chance for share in clustered), clustered
    assert single < 0.8
    assert single_lower_end < 0.95 < lower_end


def test_the_table_of_the_gate_has_a_row_for_each_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate_errors, "SETTINGS", [(20, 2, 0.1, 0.4)])
    monkeypatch.setattr(gate_errors, "GRADED", [(0.478, 0.522, 0.9, (20,))])
    monkeypatch.setattr(gate_errors, "SIZES", {"5": gate_errors.SIZES["5"]})
    monkeypatch.setattr(sys, "argv", ["gate_errors.py", "--releases", "2"])
    gate_errors.main()
    rows = capsys.readouterr().out.splitlines()
    assert rows[2] == "| 20 | 2 | 0.1 | 0.4 | 0.0% | 0.0% | 100.0% | 100.0% |"
    assert rows[6] == "| 0.478 | 0.522 | 0.9 | 20 | 3.3% |"
    assert rows[10] == "| 5 | 0.05 | 0.0% | 0.05 | 0.0% |"
