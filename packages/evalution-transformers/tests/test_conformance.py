"""Both engines pass the whole conformance kit on the real runtime, with no gap."""

from __future__ import annotations

import pytest

from evalution_conformance import PRECISION_CHECKS, EngineConformance
from evalution_core import Model
from evalution_transformers import Transformers, TransformersCompat

pytest.importorskip("torch", reason="torch is not installed")

TINY = Model(path="builtin:tiny")


class TestTransformersCompatFloat32(EngineConformance):
    engine = TransformersCompat(dtype="float32", device="cpu")
    model = TINY


class TestTransformersCompatFloat64(EngineConformance):
    engine = TransformersCompat(dtype="float64", device="cpu")
    model = TINY
    # Upstream's norms and rotary embeddings are float32 whatever the model's dtype.
    tolerance = 1e-5
    checks = PRECISION_CHECKS


class TestTransformersFloat32(EngineConformance):
    engine = Transformers(dtype="float32", device="cpu")
    model = TINY


class TestTransformersFloat64(EngineConformance):
    engine = Transformers(dtype="float64", device="cpu")
    model = TINY
    tolerance = 1e-5
    checks = PRECISION_CHECKS


class TestTransformersPaged(EngineConformance):
    engine = Transformers(dtype="float32", device="cpu", paged=True)
    model = TINY
