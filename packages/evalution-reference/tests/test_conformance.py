"""The reference engine passes the whole conformance kit, with no gap."""

from __future__ import annotations

from evalution_conformance import EngineConformance
from evalution_core import Model
from evalution_reference.engine import Reference


class TestReferenceFloat64(EngineConformance):
    engine = Reference(dtype="float64")
    model = Model(path="builtin:tiny")


class TestReferenceFloat32(EngineConformance):
    engine = Reference(dtype="float32")
    model = Model(path="builtin:tiny")
