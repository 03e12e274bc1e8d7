"""Suites run through `engine.model(…).run(suite)`."""

from __future__ import annotations

from typing import Any

import pytest

from evalution_sglang import SGLang

pytest.importorskip("sglang", reason="sglang is not installed")


def test_engine_runs_suites_with_automatic_batch_size(assert_runs_suites: Any) -> None:
    engine = SGLang(
        device="cpu",
        dtype="float32",
        max_total_tokens=4096,
        mem_fraction_static=0.1,
        batch_size="auto",
        sglang_kwargs={"sleep_on_idle": True},
    )
    assert_runs_suites(engine)
