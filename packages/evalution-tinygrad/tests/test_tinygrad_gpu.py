"""The conformance kit on a GPU through tinygrad; EVALUTION_GPU_DEVICE=cpu rehearses it."""

from __future__ import annotations

import os

import pytest

from evalution_conformance import EngineConformance
from evalution_core import Model
from evalution_tinygrad import Tinygrad

pytest.importorskip("tinygrad", reason="tinygrad is not installed")

pytestmark = pytest.mark.gpu


class TestTinygradCuda(EngineConformance):
    engine = Tinygrad(device=os.environ.get("EVALUTION_GPU_DEVICE", "cuda"))
    model = Model("builtin:tiny")
    timeout = 240.0
