"""VLLM passes the whole conformance kit on vLLM's CPU build."""

from __future__ import annotations

import atexit
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from safetensors.numpy import load_file, save_file

from evalution_conformance import EngineConformance
from evalution_core import Model
from evalution_core.builtins import builtin_path
from evalution_vllm import VLLM

pytest.importorskip("vllm", reason="vllm is not installed")

TINY = Model(path="builtin:tiny")
_MADE = TemporaryDirectory()
# Not at the module's end: tests that run in parallel may return to it.
atexit.register(_MADE.cleanup)


def _write_incomplete(folder: Path) -> Path:
    """Write the tiny model without its last norm.

    A linear layer would be no test: vLLM 0.32 exempts those of unquantised models from its check
    for missing weights and runs on uninitialised memory, which the self check may refuse or not.
    """
    tiny = builtin_path("builtin:tiny", "safetensors")
    for file in tiny.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copy(file, folder)
    weights = load_file(tiny / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


_INCOMPLETE = Model(str(_write_incomplete(Path(_MADE.name))))


class TestVLLMFloat32(EngineConformance):
    engine = VLLM(dtype="float32", enforce_eager=True, max_num_seqs=16, multiprocessing=False)
    model = TINY
    incomplete = _INCOMPLETE
    tolerance = 1e-4


@pytest.mark.gpu
class TestVLLMCuda(EngineConformance):
    engine = VLLM(dtype="float32", enforce_eager=True, max_num_seqs=16, gpu_memory_utilization=0.3)
    model = TINY
    incomplete = _INCOMPLETE
