"""The cost of quantisation, apart from that of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalution.fidelity.measurement import FidelityOptions, measure_fidelity
from evalution.runs.preflight import EngineAndModel
from evalution.suites.language_modelling import Perplexity
from evalution_core import Model
from evalution_gptqmodel import GPTQModel
from evalution_reference import Reference
from evalution_transformers import Transformers

PROSE = Perplexity(data="builtin:tiny/prose", text="text", max_rows=8)
FLOAT32: dict[str, Any] = {"dtype": "float32", "device": "cpu"}


def measure(left: EngineAndModel, right: EngineAndModel, **options: Any) -> Any:
    found = measure_fidelity(left, right, [PROSE], FidelityOptions(window=128, **options))
    return found.overall


def test_control_leaves_what_four_bits_cost(tiny: Path, quantized: Path) -> None:
    exact = EngineAndModel(Reference(dtype="float64"), Model(str(tiny)))
    control = EngineAndModel(Transformers(**FLOAT32), Model(str(tiny)))
    candidate = EngineAndModel(GPTQModel(**FLOAT32), Model(str(quantized)))
    found = measure(exact, candidate, control=control)
    assert found.control.divergence.kl.value < 1e-9
    assert 1e-4 < found.contrast.low < found.contrast.value < 0.1
    assert found.contrast.value == pytest.approx(found.candidate.divergence.kl.value)


def test_either_side_reads_the_dequantized_weights(quantized: Path, dequantized: Path) -> None:
    sides = (
        EngineAndModel(Reference(dtype="float64"), Model(str(dequantized))),
        EngineAndModel(GPTQModel(**FLOAT32), Model(str(quantized))),
    )
    for left, right in (sides, sides[::-1]):
        assert measure(left, right).candidate.divergence.kl.value < 1e-5
