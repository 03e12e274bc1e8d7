"""The engine passes the whole conformance kit on the real runtime, with no gap."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from evalution_conformance import PRECISION_CHECKS, EngineConformance
from evalution_core import BaseEngine, BaseInferenceSession, Model
from evalution_core.builtins import builtin_path
from evalution_llama_cpp import LlamaCpp
from evalution_reference import Reference

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

TINY = Model(path="builtin:tiny")
QUANTISED = Model(path=str(builtin_path("builtin:tiny", "gguf-q8_0")))


@dataclass(slots=True)
class UnquantisedReference(BaseEngine):
    """The reference engine on the weights that the quantised file was made of."""

    max_model_len: int | None = None

    capabilities = Reference.capabilities

    def build(self, model: Model) -> BaseInferenceSession:
        return Reference(dtype="float64", max_model_len=self.max_model_len).build(TINY)


class TestLlamaCppFloat32(EngineConformance):
    engine = LlamaCpp(device="cpu", n_threads=1)
    model = TINY
    tolerance = 1e-4


class TestLlamaCppFixedBatches(EngineConformance):
    engine = LlamaCpp(device="cpu", n_threads=1, continuous_batching=False)
    model = TINY
    tolerance = 1e-4
    # Scoring is as above.
    checks = frozenset(
        {
            "continuous",
            "generation",
            "isolation",
            "lifecycle",
            "sampling",
            "stopping",
            "test_a_batch_scores_as_its_pairs_alone",
            "test_scores_equal_the_reference",
        }
    )


class TestLlamaCppFloat16Cache(EngineConformance):
    engine = LlamaCpp(device="cpu", type_k="f16", type_v="f16", n_threads=1)
    model = TINY
    # Measured over 1,693 reference values: at most 1.8e-3, 8e-5 on average.
    tolerance = 3e-3
    checks = PRECISION_CHECKS


class TestLlamaCppQuantised(EngineConformance):
    engine = LlamaCpp(device="cpu", n_threads=1)
    model = QUANTISED
    oracle = UnquantisedReference()
    # Measured against the weights before they were quantised: at most 0.12, 0.006 on average.
    tolerance = 0.15
    checks = PRECISION_CHECKS
