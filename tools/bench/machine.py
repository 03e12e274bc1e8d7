"""The machine that a bench runs on: what it is, and what a run costs there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def described(device: str, *packages: str) -> str:
    """The device, `cpu` or `cuda`, and the versions of packages, in a line."""
    name = torch.cuda.get_device_name() if device == "cuda" else device
    return ", ".join([name, *(f"{package} {version(package)}" for package in packages)])


def timed(run: Callable[[], T], device: str) -> tuple[float, T]:
    """Seconds of `run`, and what it gave.

    They are the processor's for the CPU, since other jobs disturb a clock on the wall, and the
    clock's for a CUDA device, which works beside the processor.
    """
    if device == "cpu":
        start = time.process_time()
        found = run()
        return time.process_time() - start, found
    torch.cuda.synchronize()
    start = time.perf_counter()
    found = run()
    torch.cuda.synchronize()
    return time.perf_counter() - start, found


def write_figures(file: Path | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write what a bench measured, a mapping for each shape, as JSON, if a file is named."""
    if file is not None:
        file.write_text(json.dumps(list(rows), indent=1), "utf-8")
