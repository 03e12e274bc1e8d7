"""SGLang on a CPU: stand-ins for what is built for GPUs alone, and one engine for many tests."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from evalution_core import Model
from evalution_sglang import SGLang

HERE = Path(__file__).parent
HAS_KERNELS = find_spec("sgl_kernel") is not None
PREPARED = ["sglang.srt.managers.scheduler", "sglang.srt.managers.detokenizer_manager"]
if not HAS_KERNELS:
    # SGLang's processes get it from here as well, and what they are forked from by the variable.
    sys.path.insert(0, str(HERE / "standins"))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(HERE / "standins"), os.environ.get("PYTHONPATH")])
    )
    multiprocessing.set_forkserver_preload(["__main__", *PREPARED])

CPU = SGLang(
    device="cpu",
    max_running_requests=16,
    max_total_tokens=8192,
    mem_fraction_static=0.1,
    sglang_kwargs={"sleep_on_idle": True},
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings that SGLang 0.5 raises when it is imported and started."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning"))


@pytest.fixture(scope="module", autouse=True)
def forked_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork SGLang's processes from one that has imported it, which saves each seven seconds.

    The tests of its processes start them as it does itself, and so do all where there is a GPU.
    """
    if HAS_KERNELS or request.path.name == "test_sglang_processes.py":
        yield
        return
    set_method = multiprocessing.set_start_method

    def set_other_method(method: str, force: bool = False) -> None:
        set_method("forkserver" if method == "spawn" else method, force)

    with mock.patch.object(multiprocessing, "set_start_method", set_other_method):
        yield


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    pytest.importorskip("sglang", reason="sglang is not installed")
    with CPU.build(Model("builtin:tiny")) as session:
        yield session
