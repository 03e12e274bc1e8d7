"""The conformance kit on the real runtime, where there is one: it was never run."""

from __future__ import annotations

import pytest

from evalution_conformance import EngineConformance
from evalution_core import Model
from evalution_tensorrt_llm import TensorRTLLM

pytest.importorskip("tensorrt_llm", reason="tensorrt-llm is not installed")


@pytest.mark.gpu
class TestTensorRTLLMCuda(EngineConformance):
    engine = TensorRTLLM(dtype="bfloat16", max_batch_size=16, free_gpu_memory_fraction=0.3)
    model = Model(path="builtin:tiny")
