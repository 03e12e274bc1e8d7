"""Sessions in actors on two nodes keep the contract as those that they wrap do, with no gap."""

from __future__ import annotations

from typing import Any

import pytest

from evalution_conformance import WRAPPER_CHECKS, EngineConformance
from evalution_core import Model
from evalution_ray import RayReplicas
from evalution_reference.engine import Reference

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def _connected(clusters: Any) -> None:
    clusters.two_nodes()


class TestRayReplicasOfReference(EngineConformance):
    # Little of a node: the kit builds sessions beside the one that its checks share.
    engine = RayReplicas(Reference(dtype="float64"), 2, num_cpus=0.1)
    model = Model(path="builtin:tiny")
    checks = WRAPPER_CHECKS
