"""Sessions in worker processes keep the contract as those that they wrap do, with no gap."""

from __future__ import annotations

from evalution.replicas import Replicas
from evalution_conformance import WRAPPER_CHECKS, EngineConformance
from evalution_core import Model
from evalution_enginekit.mock import Mock
from evalution_reference.engine import Reference


class TestReplicasOfMock(EngineConformance):
    """What lies between caller and session is the same for any engine; these workers start soon."""

    engine = Replicas(Mock(), 2)
    oracle = Mock()
    model = Model(path="mock")
    checks = WRAPPER_CHECKS | {"test_template_variables_are_not_dropped"}


class TestIsolatedReference(EngineConformance):
    engine = Replicas(Reference(dtype="float64"), 1)
    model = Model(path="builtin:tiny")
    checks = frozenset({"continuous", "distributions"})  # several workers have no distributions
