"""Checks an engine against the contract: subclass `EngineConformance`, run pytest."""

from evalution_conformance.checks.boundary import BoundaryChecks
from evalution_conformance.checks.continuous import ContinuousChecks
from evalution_conformance.checks.discovery import DiscoveryChecks, PackagingChecks
from evalution_conformance.checks.generation import GenerationChecks
from evalution_conformance.checks.lifecycle import BuildChecks, LifecycleChecks
from evalution_conformance.checks.rolling import RollingChecks
from evalution_conformance.checks.sampling import SamplingChecks
from evalution_conformance.checks.scoring import ScoringChecks
from evalution_conformance.checks.stopping import StoppingChecks
from evalution_conformance.suite import Conformance, Gap

__all__ = ["EngineConformance", "Gap", "StructuralConformance"]


class StructuralConformance(BuildChecks, DiscoveryChecks, Conformance):
    """What an engine must keep before its model works: imports, options, build, description."""


class EngineConformance(
    PackagingChecks,
    RollingChecks,
    BoundaryChecks,
    ScoringChecks,
    ContinuousChecks,
    SamplingChecks,
    StoppingChecks,
    GenerationChecks,
    LifecycleChecks,
    StructuralConformance,
):
    """The whole contract."""
