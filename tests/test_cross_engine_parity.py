"""Engines give the reference engine's numbers by default: no option of theirs is set."""

from __future__ import annotations

import gc

import pytest

from evalution.parity import Tolerance, check_parity
from evalution.runs.preflight import EngineAndModel
from evalution.yaml_spec.run_spec import load_spec
from evalution_core import Model, load_engine
from evalution_core.discovery import available

QUICKSTART = "builtin:tiny/quickstart"
ROWS = 12

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
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    # vLLM leaves a ZeroMQ context unclosed.
    "ignore:Exception ignored in. <function Context:pytest.PytestUnraisableExceptionWarning",
)
# vLLM may compile the model first.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ENGINES)
def test_scores_equal_those_of_the_reference_engine(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # vLLM's own tests switch the compiler off for this process, and its default is to compile.
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    spec = load_spec(QUICKSTART)
    model = Model(path="builtin:tiny")
    found = check_parity(
        EngineAndModel(spec.engine, spec.model),
        EngineAndModel(load_engine(name)(), model),
        spec.tests,
        tolerance=Tolerance(logprob=1e-4),
        limit=ROWS,
    )
    gc.collect()
    assert found.is_within, found.complaints
    for suite in found.suites:
        assert suite.compared == suite.requests
        assert suite.by_ids == suite.requests
    assert {suite.kind for suite in found.suites} == {"generation", "loglikelihood", "rolling"}
