"""The engine passes the whole conformance kit on the real runtime, with and without genai."""

from __future__ import annotations

import pytest

from evalution_conformance import EngineConformance
from evalution_core import Model
from evalution_openvino import OpenVINO

pytest.importorskip("optimum.intel", reason="optimum-intel is not installed")

# In a beam search Optimum Intel 2.2 makes an array of a tensor, and torch takes no `copy` yet.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

TINY = Model(path="builtin:tiny")


class TestOpenVINOFloat32(EngineConformance):
    engine = OpenVINO(dtype="float32", genai=False)
    model = TINY


class TestOpenVINOGenaiFloat32(EngineConformance):
    engine = OpenVINO(dtype="float32", genai=True)
    model = TINY
