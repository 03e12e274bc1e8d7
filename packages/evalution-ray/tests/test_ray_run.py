"""Suites run through `engine.model(…).run(suite)`."""

from __future__ import annotations

from typing import Any

import pytest

from evalution_ray import RayReplicas
from evalution_reference import Reference


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("batch_size", ["auto", 3])
def test_engine_runs_suites_with_any_batch_size(batch_size: Any, assert_runs_suites: Any) -> None:
    engine = RayReplicas(Reference(batch_size=batch_size), 2, num_cpus=0.1)
    assert_runs_suites(engine)
