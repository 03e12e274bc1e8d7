"""Which accelerators the system's own tools tell of; no runtime is imported for it."""

from __future__ import annotations

import csv
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

_SECONDS = 20
_NVIDIA_FIELDS = ("index", "name", "memory.total", "memory.free", "driver_version", "compute_cap")
_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device; `memory` in bytes, None where the tool doesn't say."""

    kind: str
    index: int
    name: str
    memory: int | None = None
    memory_free: int | None = None
    driver: str | None = None
    compute_capability: str | None = None


@dataclass(frozen=True, slots=True)
class Accelerators:
    """The devices, and what hid any: a tool that failed, a variable that hides devices."""

    devices: Sequence[Accelerator]
    notes: Sequence[str]


def accelerators() -> Accelerators:
    """Ask `nvidia-smi` and `rocm-smi` where they are installed, and the system on a Mac."""
    devices: list[Accelerator] = []
    notes: list[str] = []
    for command, parse in _TOOLS:
        if shutil.which(command[0]) is None:
            continue
        printed, fault = _printed(command)
        if fault is not None:
            notes.append(fault)
            continue
        try:
            devices += parse(printed)
        except (ValueError, KeyError, TypeError) as error:
            notes.append(f"{command[0]} printed what could not be read: {error!r}")
    if sys.platform == "darwin" and platform.machine() == "arm64":
        devices.append(Accelerator("metal", 0, "Apple GPU (shares the machine's memory)"))
    notes += [
        f"{name}={os.environ[name]!r} decides which of them a runtime sees"
        for name in _HIDING
        if name in os.environ
    ]
    return Accelerators(devices, notes)


def parse_nvidia(printed: str) -> list[Accelerator]:
    """Devices from `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`.

    Raises:
        ValueError: a line has not all the fields that were asked for.
    """
    found: list[Accelerator] = []
    for line in csv.reader(printed.strip().splitlines(), skipinitialspace=True):
        told = dict(zip(_NVIDIA_FIELDS, line, strict=True))
        found.append(
            Accelerator(
                "cuda",
                int(told["index"]),
                told["name"],
                _bytes(told["memory.total"]),
                _bytes(told["memory.free"]),
                told["driver_version"],
                told["compute_cap"],
            )
        )
    return found


def parse_rocm(printed: str) -> list[Accelerator]:
    """Devices from `rocm-smi --showproductname --showmeminfo vram --json`."""
    told = cast("Mapping[str, Mapping[str, Any]]", json.loads(printed))
    found: list[Accelerator] = []
    for card, facts in told.items():
        if not card.startswith("card"):
            continue
        total = facts.get("VRAM Total Memory (B)")
        used = facts.get("VRAM Total Used Memory (B)")
        free = int(total) - int(used) if total is not None and used is not None else None
        name = facts.get("Card Series") or facts.get("Card series") or "AMD GPU"
        memory = None if total is None else int(total)
        found.append(Accelerator("rocm", int(card.removeprefix("card")), name, memory, free))
    return found


_TOOLS = (
    (
        ("nvidia-smi", f"--query-gpu={','.join(_NVIDIA_FIELDS)}", "--format=csv,noheader,nounits"),
        parse_nvidia,
    ),
    (("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json"), parse_rocm),
)


def _bytes(mebibytes: str) -> int | None:
    # "[N/A]" on devices that share the machine's memory
    return int(mebibytes) * _MEBIBYTE if mebibytes.isdecimal() else None


def _printed(command: Sequence[str]) -> tuple[str, str | None]:
    """What a tool prints, and what is wrong where it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} doesn't answer within {_SECONDS} s"
    except OSError as error:
        return "", f"{command[0]} can't be run: {error.strerror}"
    if done.returncode:
        told = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        return "", f"{command[0]} failed with {done.returncode}: {told[0]}"
    return done.stdout, None
