"""The conformance kit on a build of llama.cpp with CUDA; EVALUTION_GPU_DEVICE=cpu rehearses it."""

from __future__ import annotations

import os

import pytest

from evalution_conformance import EngineConformance
from evalution_core import Model
from evalution_llama_cpp import LlamaCpp
from evalution_llama_cpp.options import DeviceName

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

pytestmark = pytest.mark.gpu

DEVICE: DeviceName = "cpu" if os.environ.get("EVALUTION_GPU_DEVICE") == "cpu" else "cuda"


class TestLlamaCppCuda(EngineConformance):
    engine = LlamaCpp(device=DEVICE, strict_device=True)
    model = Model("builtin:tiny")
    # llama.cpp multiplies matrices of float32 on CUDA in TF32 or float16, and caches float16.
    tolerance = 2e-2
