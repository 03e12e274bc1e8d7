"""Suites run through `engine.model(…).run(suite)`."""

from __future__ import annotations

import pytest

from evalution import suites
from evalution_sglang import SGLang

pytest.importorskip("sglang", reason="sglang is not installed")


def test_engine_runs_suites_with_automatic_batch_size() -> None:
    engine = SGLang(
        device="cpu",
        dtype="float32",
        max_total_tokens=4096,
        mem_fraction_static=0.1,
        batch_size="auto",
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
