"""Every engine of the environment gives the reference engine's numbers, asked by the runner."""

from __future__ import annotations

from typing import Any

import pytest

from evalution.parity import Tolerance, check_parity
from evalution.runs.preflight import EngineAndModel
from evalution.yaml_spec.run_spec import load_spec
from evalution_core import Model, load_engine
from evalution_core.discovery import available

QUICKSTART = "builtin:tiny/quickstart"
ROWS = 12

EXACT: dict[str, dict[str, Any]] = {
    "LlamaCpp": {"device": "cpu"},
    "OpenVINO": {"dtype": "float32", "device": "CPU"},
    "Reference": {"dtype": "float32"},
    "SGLang": {"dtype": "float32", "device": "cpu"},
    "Tinygrad": {"device": "CPU"},
    "Transformers": {"dtype": "float32", "device": "cpu"},
    "TransformersCompat": {"dtype": "float32", "device": "cpu"},
    "VLLM": {"dtype": "float32", "enforce_eager": True, "multiprocessing": False},
}
"""The options under which an engine computes in float32 throughout."""

NOT_COMPARABLE = {
    "GPTQModel": "it takes quantised weights, whose numbers are their own",
    "OpenAICompatible": "it needs a server: packages/evalution-openai compares through one",
    "RayReplicas": "it runs other engines",
    "Replicas": "it runs other engines",
    "SGLang": "on a CPU it takes stand-ins for its kernels: its own tests compare with them",
    "TensorRTLLM": "its runtime can't be had on a CPU",
    "Tinker": "it needs a server: packages/evalution-tinker compares through one",
}

# Other tests register engines of their own in this process, which no distribution brings.
INSTALLED = {entry.name for entry in available() if entry.distribution is not None}
ENGINES = sorted(INSTALLED - set(NOT_COMPARABLE))


# Runtimes call what libraries beneath them deprecate.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ENGINES)
def test_scores_equal_those_of_the_reference_engine(name: str) -> None:
    assert name in EXACT, f"say here how {name} is asked for float32"
    spec = load_spec(QUICKSTART)
    model = Model(path="builtin:tiny")
    found = check_parity(
        EngineAndModel(spec.engine, spec.model),
        EngineAndModel(load_engine(name)(**EXACT[name]), model),
        spec.tests,
        tolerance=Tolerance(logprob=1e-4),
        limit=ROWS,
    )
    assert found.is_within, found.complaints
    for suite in found.suites:
        assert suite.compared == suite.requests
        assert suite.by_ids == suite.requests
    assert {suite.kind for suite in found.suites} == {"generation", "loglikelihood", "rolling"}
