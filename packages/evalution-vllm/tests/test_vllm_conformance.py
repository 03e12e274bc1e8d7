"""VLLM passes the whole conformance kit on vLLM's CPU build."""

from __future__ import annotations

import pytest

from evalution_conformance import EngineConformance
from evalution_core import Model
from evalution_vllm import VLLM

pytest.importorskip("vllm", reason="vllm is not installed")

TINY = Model(path="builtin:tiny")


class TestVLLMFloat32(EngineConformance):
    engine = VLLM(dtype="float32", enforce_eager=True, max_num_seqs=16, multiprocessing=False)
    model = TINY
    tolerance = 1e-4


@pytest.mark.gpu
class TestVLLMCuda(EngineConformance):
    engine = VLLM(dtype="float32", enforce_eager=True, max_num_seqs=16, gpu_memory_utilization=0.3)
    model = TINY
