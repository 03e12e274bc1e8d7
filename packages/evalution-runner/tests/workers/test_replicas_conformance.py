"""Sessions in worker processes keep the contract as those that they wrap do, with no gap."""

from __future__ import annotations

from evalution.replicas import Replicas
from evalution_conformance import WRAPPER_CHECKS, EngineConformance
from evalution_core import Model
from evalution_enginekit.mock import Mock
from evalution_reference.engine import Reference


class TestReplicasOfReference(EngineConformance):
    engine = Replicas(Reference(dtype="float64"), 2)
    model = Model(path="builtin:tiny")
    checks = (WRAPPER_CHECKS - {"lifecycle"}) | {"test_template_variables_are_not_dropped"}


class TestReplicasOfMock(EngineConformance):
    """Sessions begin and end alike, whatever computes in them; these workers start sooner."""

    engine = Replicas(Mock(), 2)
    oracle = Mock()
    model = Model(path="mock")
    checks = frozenset({"lifecycle"})


class TestIsolatedReference(EngineConformance):
    engine = Replicas(Reference(dtype="float64"), 1)
    model = Model(path="builtin:tiny")
    checks = frozenset({"continuous", "distributions"})  # several workers have no distributions
