"""Suites run through `engine.model(…).run(suite)`."""

from __future__ import annotations

from typing import Any

import pytest

from evalution import suites
from evalution_vllm import VLLM

pytest.importorskip("vllm", reason="vllm is not installed")


@pytest.mark.parametrize("batch_size", ["auto", 3])
def test_engine_runs_suites_with_any_batch_size(batch_size: Any) -> None:
    engine = VLLM(
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=4,
        multiprocessing=False,
        batch_size=batch_size,
    )
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
