"""Suites run through `engine.model(…).run(suite)`."""

from __future__ import annotations

from typing import Any

import pytest

from evalution import suites
from evalution_tinker import Tinker

pytest.importorskip("tinker", reason="tinker is not installed")

# tinker 0.24 and 0.38 leave a connection open however they are closed.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <(function _SelectorTransport|socket\.socket)"
    ":pytest.PytestUnraisableExceptionWarning"
)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_engine_runs_suites_with_any_batch_size(server: Any, batch_size: int) -> None:
    engine = Tinker(base_url=server.url, batch_size=batch_size)
    prose = suites.Perplexity(data="builtin:tiny/prose", text="text", max_rows=2)
    sums = suites.Generation(
        data="builtin:tiny/sums",
        prompt="Question: {question}\nAnswer:",
        target="answer",
        max_rows=3,
    )
    with engine.model(path="builtin:tiny") as run:
        run.run(prose).run(sums)
    assert [suite.failed for suite in run.result.suites] == [0, 0]
    assert [suite.n for suite in run.result.suites] == [2, 3]
