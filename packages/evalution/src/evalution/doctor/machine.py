"""Facts about this machine: system, processor, memory, disk."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_FEATURES = {
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx_vnni": "avx_vnni",
    "avx512f": "avx512f",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "amx_tile": "amx",
    "amx_bf16": "amx_bf16",
    "amx_int8": "amx_int8",
    "asimd": "neon",
    "neon": "neon",
    "asimddp": "dotprod",
    "bf16": "bf16",
    "i8mm": "i8mm",
    "sve": "sve",
}
"""What inference kernels choose by: the kernel's flag, and the name that people know."""

_LINUX_CPU = Path("/proc/cpuinfo")
_MODEL_KEYS = ("model name", "Model", "cpu model", "Hardware")
_COMMAND_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Machine:
    """Sizes in bytes. What the system doesn't tell is None, or an empty list of features.

    `cores` may be fewer than `cpus`, which counts hardware threads; `usable_cpus` are those that
    this process may run on. `disk_free` is of the working folder.
    """

    python: str
    executable: str
    system: str
    architecture: str
    cpu: str | None
    cpu_features: tuple[str, ...]
    cores: int | None
    cpus: int | None
    usable_cpus: int | None
    memory: int
    memory_available: int
    folder: str
    disk_free: int


def this_machine() -> Machine:
    """Ask the system; nothing heavy is imported, and no command runs longer than seconds."""
    import psutil  # noqa: PLC0415 - only the doctor needs it

    memory = psutil.virtual_memory()
    folder = Path.cwd()
    model, features = processor()
    return Machine(
        python=f"{platform.python_implementation()} {platform.python_version()}",
        executable=sys.executable,
        system=platform.platform(terse=True),
        architecture=platform.machine(),
        cpu=model,
        cpu_features=features,
        cores=psutil.cpu_count(logical=False),
        cpus=psutil.cpu_count(),
        usable_cpus=_usable_cpus(),
        memory=memory.total,
        memory_available=memory.available,
        folder=str(folder),
        disk_free=psutil.disk_usage(str(folder)).free,
    )


def processor() -> tuple[str | None, tuple[str, ...]]:
    """The processor's name, and those of its features that decide how fast a model runs."""
    if sys.platform == "linux":
        try:
            return parse_cpuinfo(_LINUX_CPU.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return None, ()
    if sys.platform == "darwin":
        return _apple_processor()
    return platform.processor() or None, ()


def parse_cpuinfo(text: str) -> tuple[str | None, tuple[str, ...]]:
    """Name and features of the first processor in the text of Linux's `/proc/cpuinfo`."""
    first = text.split("\n\n", 1)[0]
    lines = (line.partition(":") for line in first.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in lines}
    model = next((fields[key] for key in _MODEL_KEYS if fields.get(key)), None)
    flags = set(f"{fields.get('flags', '')} {fields.get('Features', '')}".split())
    return model, features_of(flags)


def features_of(flags: set[str]) -> tuple[str, ...]:
    """The features that matter, in one order, from a system's flags."""
    return tuple(dict.fromkeys(name for flag, name in _FEATURES.items() if flag in flags))


def _apple_processor() -> tuple[str | None, tuple[str, ...]]:
    told = _told_by("sysctl", "-n", "machdep.cpu.brand_string")
    flags = {"asimd"} if platform.machine() == "arm64" else set[str]()
    flags |= set((_told_by("sysctl", "-n", "machdep.cpu.leaf7_features") or "").lower().split())
    return told, features_of(flags)


def _told_by(*command: str) -> str | None:
    """What a command prints, None if it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _usable_cpus() -> int | None:
    # Not on every system.
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count()
