"""SGLang on a CPU: stand-ins for what is built for GPUs alone, and one engine for many tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from evalution_core import Model
from evalution_sglang import SGLang

HERE = Path(__file__).parent
HAS_KERNELS = find_spec("sgl_kernel") is not None
if not HAS_KERNELS:
    # SGLang's processes get it from here as well.
    sys.path.insert(0, str(HERE / "standins"))

CPU = SGLang(
    device="cpu",
    max_running_requests=16,
    max_total_tokens=8192,
    mem_fraction_static=0.1,
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings that SGLang 0.5 raises when it is imported and started."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning"))


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    pytest.importorskip("sglang", reason="sglang is not installed")
    with CPU.build(Model("builtin:tiny")) as session:
        yield session
