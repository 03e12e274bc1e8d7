"""Suites run through `engine.model(…).run(suite)`."""

from __future__ import annotations

from typing import Any

import pytest

from evalution_tinker import Tinker

pytest.importorskip("tinker", reason="tinker is not installed")

# tinker 0.24 and 0.38 leave a connection open however they are closed.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <(function _SelectorTransport|socket\.socket)"
    ":pytest.PytestUnraisableExceptionWarning"
)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_engine_runs_suites_with_any_batch_size(
    server: Any, batch_size: int, assert_runs_suites: Any
) -> None:
    engine = Tinker(base_url=server.url, batch_size=batch_size)
    assert_runs_suites(engine)
