"""Suites run through `engine.model(…).run(suite)`."""

from __future__ import annotations

from typing import Any

import pytest

from evalution_vllm import VLLM

pytest.importorskip("vllm", reason="vllm is not installed")


@pytest.mark.parametrize("batch_size", ["auto", 3])
def test_engine_runs_suites_with_any_batch_size(batch_size: Any, assert_runs_suites: Any) -> None:
    engine = VLLM(
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=4,
        multiprocessing=False,
        batch_size=batch_size,
    )
    assert_runs_suites(engine)
