"""One engine core for all tests that don't need another: starting one takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalution_core import Model
from evalution_vllm import VLLM

CONTEXT = (
    "ignore:Exception ignored in. <function Context.__del__:pytest.PytestUnraisableExceptionWarning"
)
HERE = Path(__file__).parent
# vLLM compiles its sampler at the first step otherwise, which takes a compiler and up to a minute.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """vLLM 0.32 calls what torch 2.13 deprecates, and leaves a ZeroMQ context unclosed."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings(CONTEXT))


@pytest.fixture(scope="module")
def engine() -> VLLM:
    return VLLM(enforce_eager=True, max_num_seqs=16, multiprocessing=False)


@pytest.fixture(scope="module")
def session(engine: VLLM) -> Iterator[Any]:
    pytest.importorskip("vllm", reason="vllm is not installed")
    with engine.build(Model("builtin:tiny")) as session:
        yield session
