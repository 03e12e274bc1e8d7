"""Suites run through `engine.model(…).run(suite)`."""

from __future__ import annotations

from typing import Any

import pytest

from evalution_tensorrt_llm import TensorRTLLM


@pytest.mark.parametrize("batch_size", ["auto", None, 3])
def test_engine_runs_suites_with_any_batch_size(
    installed: Any, batch_size: Any, assert_runs_suites: Any
) -> None:
    installed("1.3.0rc20")
    engine = TensorRTLLM(dtype="float32", max_batch_size=4, batch_size=batch_size)
    assert_runs_suites(engine)
