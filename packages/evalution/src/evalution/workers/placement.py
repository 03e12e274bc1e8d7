"""Where workers run: a device each, or a share of the cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
THREAD_COUNTS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


@dataclass(frozen=True, slots=True)
class Place:
    """Variables set in a worker's environment, and the cores that it is bound to (None: all)."""

    environment: dict[str, str] = field(default_factory=dict[str, str])
    cores: tuple[int, ...] | None = None


def places(workers: int, devices: Sequence[str] | None) -> list[Place]:
    """A place for each worker.

    With devices, worker i sees `devices[i]` alone. One worker without devices has all. Several
    share the cores of this process in equal parts, each bound to its part where the system can do
    that; with devices they aren't bound. Libraries are told of as many threads as a part has cores,
    unless this process's environment says a number already.
    """
    if workers == 1:
        return [Place(_device(devices, 0))]
    cores = _cores()
    parts = [
        tuple(cores[i * len(cores) // workers : (i + 1) * len(cores) // workers])
        for i in range(workers)
    ]
    return [
        Place(
            {**_threads(len(part)), **_device(devices, index)},
            part if part and devices is None and hasattr(os, "sched_setaffinity") else None,
        )
        for index, part in enumerate(parts)
    ]


def _device(devices: Sequence[str] | None, index: int) -> dict[str, str]:
    return {} if devices is None else {VISIBLE_DEVICES: devices[index]}


def _threads(count: int) -> dict[str, str]:
    return {name: str(max(1, count)) for name in THREAD_COUNTS if name not in os.environ}


def _cores() -> list[int]:
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
