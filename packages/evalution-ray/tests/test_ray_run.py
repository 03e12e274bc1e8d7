"""Suites run through `engine.model(…).run(suite)`."""

from __future__ import annotations

from typing import Any

import pytest

from evalution import suites
from evalution_ray import RayReplicas
from evalution_reference import Reference


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("batch_size", ["auto", 3])
def test_engine_runs_suites_with_any_batch_size(batch_size: Any) -> None:
    engine = RayReplicas(Reference(batch_size=batch_size), 2, num_cpus=0.1)
    prose = suites.Perplexity(data="builtin:tiny/prose", text="text", max_rows=2)
    sums = suites.Generation(
        data="builtin:tiny/sums",
        prompt="Question: {question}\nAnswer:",
        target="answer",
        max_rows=3,
    )
    with engine.model(path="builtin:tiny") as run:
        run.run(prose).run(sums)
    assert [suite.failed for suite in run.result.suites] == [0, 0]
    assert [suite.n for suite in run.result.suites] == [2, 3]
