"""The reference engine passes the whole conformance kit, with no gap, and in float32 its values."""

from __future__ import annotations

from evalution_conformance import PRECISION_CHECKS, EngineConformance
from evalution_core import Model
from evalution_reference.engine import Reference


class TestReferenceFloat64(EngineConformance):
    engine = Reference(dtype="float64")
    model = Model(path="builtin:tiny")


class TestReferenceFloat32(EngineConformance):
    engine = Reference(dtype="float32")
    model = Model(path="builtin:tiny")
    checks = PRECISION_CHECKS
