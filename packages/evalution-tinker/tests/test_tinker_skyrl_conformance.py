"""The conformance kit on a real server: SkyRL 0.3.0 on a CPU.

The server compiles every new shape of a batch, so `.ci/run` chooses some checks by name. All of
them, whose report is in docs/registry.md, take nine minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from evalution_conformance import EngineConformance
from evalution_core import Model
from evalution_core.builtins import builtin_path
from evalution_reference import Reference
from evalution_tinker import Tinker

pytest.importorskip("skyrl", reason="skyrl is not installed")

# tinker 0.24 and 0.38 leave a connection open however they are closed.
pytestmark = [
    pytest.mark.wide,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first one starts the server
    pytest.mark.filterwarnings(
        r"ignore:Exception ignored in. <(function _SelectorTransport|socket\.socket)"
        ":pytest.PytestUnraisableExceptionWarning"
    ),
]


class TestSkyRL(EngineConformance):
    model = Model(path=str(builtin_path("builtin:tiny", "safetensors")))
    engine = Tinker()
    oracle = Reference()
    oracle_model = Model(path="builtin:tiny")
    tolerance = 1e-4
    timeout = 240.0


@pytest.fixture(scope="module", autouse=True)
def served(skyrl_url: str) -> Generator[None]:
    """The address is known only once the server runs."""
    engine = Tinker(base_url=skyrl_url, max_model_len=512, batch_size=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TestSkyRL, "engine", engine)
        yield
