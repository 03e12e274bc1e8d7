"""The commands of docs/from-lm-eval.md give the same numbers on both sides."""

from __future__ import annotations

from math import isclose
from pathlib import Path

import pytest

from lm_eval_commands import TOLERANCE, read_pairs, run_pair

for package in ("lm_eval", "evalution_transformers"):
    pytest.importorskip(package, reason=f"{package} isn't installed; see tools/envs/lm-eval.in")

pytestmark = [
    pytest.mark.wide,
    pytest.mark.filterwarnings("ignore"),  # it is another project's code that warns
]
PAIRS = read_pairs()


def test_page_translates_ten_commands() -> None:
    assert len(PAIRS) == 10


@pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=[ours.split()[2] for _, ours in PAIRS])
def test_translated_command_gives_the_same_numbers(theirs: str, ours: str, tmp_path: Path) -> None:
    found = run_pair(theirs, ours, tmp_path)
    assert found
    for name, (expected, value) in found.items():
        assert isclose(expected, value, rel_tol=TOLERANCE), f"{name}: {expected} and {value}"
