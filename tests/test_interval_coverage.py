"""The table of decision 0021 comes from a script that runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import interval_coverage


def test_the_table_has_a_row_for_each_kind_and_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["interval_coverage.py", "--corpora", "2", "--documents", "3"])
    interval_coverage.main()
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head == "| corpora | figure | 3 documents |"
    assert len(rows) == len(interval_coverage.KINDS) * len(interval_coverage.NAMES)
    assert all(row.endswith((" 0.0 % |", " 50.0 % |", " 100.0 % |")) for row in rows)
