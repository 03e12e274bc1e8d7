"""Figures of parity checks as plain data; what the script makes of them is tested in a browser."""

from __future__ import annotations

from pathlib import Path

from evalution.report.page import read_folders
from evalution.report.parity import make_parity_figures


def test_parity_is_drawn(parity_folder: Path) -> None:
    [check] = read_folders([parity_folder]).parity
    figures = make_parity_figures(check, "parity-0")

    assert [figure.name for figure in figures] == ["parity-0-distribution", "parity-0-tokens"]
    counted = sum(mark.y for series in figures[0].series for mark in series.marks)
    assert counted == sum(suite.tokens.count for suite in check.suites if suite.tokens)
