"""SGLang passes the whole conformance kit on a CPU."""

from __future__ import annotations

import pytest

from evalution_conformance import EngineConformance
from evalution_core import Model
from evalution_sglang import SGLang

pytest.importorskip("sglang", reason="sglang is not installed")

TINY = Model(path="builtin:tiny")


class TestSGLangFloat32(EngineConformance):
    engine = SGLang(
        device="cpu",
        dtype="float32",
        max_running_requests=16,
        max_total_tokens=8192,
        mem_fraction_static=0.1,
        sglang_kwargs={"sleep_on_idle": True},
    )
    model = TINY
    tolerance = 1e-4


@pytest.mark.gpu
class TestSGLangCuda(EngineConformance):
    engine = SGLang(dtype="float32", max_running_requests=16, mem_fraction_static=0.3)
    model = TINY
