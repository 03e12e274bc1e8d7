"""lm-eval's `hf`, lm-eval on our server by the page's commands, and our runner: equal numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalution.hints import GENERATED_VARIANTS
from lm_eval_tables import KINDS, ROWS, find_differences, make_tables

for package in ("lm_eval", "accelerate", "starlette"):
    pytest.importorskip(package, reason=f"{package} isn't installed; see tools/envs/clients.in")

pytestmark = [
    pytest.mark.wide,
    pytest.mark.filterwarnings("ignore"),  # it is another project's code that warns
]


def test_three_ways_to_evaluate_a_model_give_equal_tables(tmp_path: Path) -> None:
    tables = make_tables(tmp_path)
    assert len(tables) == 3
    for table in tables.values():
        assert {kind: len(rows) for kind, rows in table.items()} == dict.fromkeys(KINDS, ROWS)
    assert find_differences(tables) == []


def test_variants_that_refusals_name_are_tasks_of_lm_eval() -> None:
    from lm_eval.tasks import TaskManager

    assert set(GENERATED_VARIANTS.values()) <= set(TaskManager().all_tasks)
