"""The engine passes the whole conformance kit on a server of the protocol with real numbers."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from evalution_conformance import EngineConformance
from evalution_core import Model
from evalution_tinker import Tinker

pytest.importorskip("tinker", reason="tinker is not installed")

# tinker 0.24 and 0.38 leave a connection open however they are closed.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <(function _SelectorTransport|socket\.socket)"
    ":pytest.PytestUnraisableExceptionWarning"
)


class TestTinker(EngineConformance):
    model = Model(path="builtin:tiny")
    engine = Tinker()
    # The server computes in float32 and doesn't say so; at most 4.1e-6 was measured.
    tolerance = 1e-4


@pytest.fixture(scope="module", autouse=True)
def served(protocol_server: Any) -> Generator[None]:
    """The address is known only once the server runs."""
    protocol_server.quirks.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TestTinker, "engine", Tinker(base_url=protocol_server.url))
        yield
