"""Sessions in worker processes keep the contract as those that they wrap do, with no gap."""

from __future__ import annotations

from evalution.replicas import Replicas
from evalution_conformance import WRAPPER_CHECKS, EngineConformance
from evalution_core import Model
from evalution_reference.engine import Reference


class TestReplicasOfReference(EngineConformance):
    engine = Replicas(Reference(dtype="float64"), 2)
    model = Model(path="builtin:tiny")
    checks = WRAPPER_CHECKS


class TestIsolatedReference(EngineConformance):
    engine = Replicas(Reference(dtype="float64"), 1)
    model = Model(path="builtin:tiny")
    checks = frozenset({"continuous", "distributions"})  # several workers have no distributions
