"""TensorRTLLM passes the conformance kit on a fake of releases before and after March 2026."""

from __future__ import annotations

import pytest

from evalution_conformance import EngineConformance
from evalution_core import Model
from evalution_tensorrt_llm import TensorRTLLM

TINY = Model(path="builtin:tiny")


@pytest.fixture(autouse=True, scope="class")
def fake(request: pytest.FixtureRequest, installed: object) -> None:
    installed(request.cls.release)  # pyright: ignore


class TestContextLogits(EngineConformance):
    release = "1.2.1"
    engine = TensorRTLLM(dtype="float32", max_batch_size=16)
    model = TINY


class TestPromptLogprobs(EngineConformance):
    release = "1.3.0rc20"
    engine = TensorRTLLM(dtype="float32", max_batch_size=16)
    model = TINY


class TestFixedBatches(EngineConformance):
    release = "1.3.0rc20"
    engine = TensorRTLLM(dtype="float32", max_batch_size=16, continuous_batching=False)
    model = TINY


class TestBlockReuse(EngineConformance):
    release = "1.2.1"
    engine = TensorRTLLM(dtype="float32", max_batch_size=16, enable_block_reuse=True)
    model = TINY
