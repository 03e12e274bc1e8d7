"""Measure engines against each other on the tiny model, each in its own environment.

`uv run tools/fidelity_matrix.py` takes the environments that `tools/ci.py build` has made, holds
every engine against the float64 reference, and the reference against it, and prints KL in nats. An
engine whose divergence is above its bound fails. SGLang isn't among them, since without a GPU it
starts with stand-ins of its tests alone; GPTQModel's quantised weights have a test of their own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalution import Model, MultipleChoice, Perplexity
from evalution.fidelity import FidelityOptions, measure_fidelity
from evalution.fidelity.sides import LiveSession
from evalution.yaml_spec.run_spec import parse_engine
from evalution_core import EvalutionError

ROOT = Path(__file__).parents[1]
ENGINES: dict[str, tuple[str, dict[str, Any], float]] = {
    "Reference, float32": ("", {"type": "Reference", "dtype": "float32"}, 1e-9),
    "Transformers": ("torch", {"type": "Transformers", "dtype": "float32"}, 1e-9),
    "TransformersCompat": ("torch", {"type": "TransformersCompat", "dtype": "float32"}, 1e-9),
    "Transformers, bfloat16": ("torch", {"type": "Transformers", "dtype": "bfloat16"}, 1e-3),
    "OpenVINO": ("openvino", {"type": "OpenVINO", "dtype": "float32"}, 1e-9),
    "LlamaCpp": ("gguf", {"type": "LlamaCpp"}, 1e-9),
    "Tinygrad": ("gguf", {"type": "Tinygrad"}, 1e-9),
    "VLLM": ("vllm", {"type": "VLLM", "dtype": "float32"}, 1e-9),
}
"""Label to environment, spec and the largest mean KL: float32, and bfloat16's eight bits."""
MODEL = Model("builtin:tiny")
TESTS = [
    Perplexity(data="builtin:tiny/prose", text="text", max_rows=6),
    MultipleChoice(
        data="builtin:tiny/choices",
        prompt="Question: {question}\nAnswer:",
        choices="choices",
        target="answer",
        max_rows=8,
    ),
]


def main() -> int:
    """Print the matrix; 1 where a measurement failed or is above its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(ENGINES), help="labels of engines")
    parser.add_argument("--python", type=Path, default=ROOT, help="folder of the environments")
    given = parser.parse_args()
    failed = 0
    print(f"{'engine':24} {'KL(reference ‖ engine)':>24} {'KL(engine ‖ reference)':>24}")
    exact = parse_engine({"type": "Reference", "dtype": "float64"})
    with exact.build(MODEL) as session:
        reference = LiveSession(session, MODEL, exact)
        for label in given.only:
            environment, declared, bound = ENGINES[label]
            if environment:
                python = given.python / f".venv-{environment}" / "bin" / "python"
                declared = {**declared, "python": str(python)}
            try:
                found = measure_both_ways(reference, declared)
            except EvalutionError as error:
                print(f"{label}: {error}", flush=True)
                failed += 1
                continue
            is_within = max(found) <= bound
            failed += not is_within
            cells = " ".join(f"{kl:24.1e}" for kl in found)
            print(f"{label:24} {cells}{'' if is_within else f'  above {bound:g}'}", flush=True)
    return min(failed, 1)


def measure_both_ways(reference: LiveSession, declared: Mapping[str, Any]) -> tuple[float, float]:
    """Return the mean KL of all suites with the engine as candidate, and as reference."""
    engine = parse_engine(declared)
    with engine.build(MODEL) as session:
        candidate = LiveSession(session, MODEL, engine)
        return measure(reference, candidate), measure(candidate, reference)


def measure(left: LiveSession, right: LiveSession) -> float:
    found = measure_fidelity(left, right, TESTS, FidelityOptions(window=128))
    return found.overall.candidate.divergence.kl.value


if __name__ == "__main__":
    sys.exit(main())
