"""Facts about this machine: Python, system, processors, memory, disk, and accelerators if any."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_SECONDS = 20
_TOOLS = (("nvidia-smi", "-L"), ("rocm-smi", "--showproductname", "--csv"))
"""Commands that print a line for each device."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Sizes are in bytes; `disk_free` is that of the working folder.

    `accelerators` holds the lines that the vendors' own tools print, a failure among them.
    """

    python: str
    executable: str
    system: str
    architecture: str
    cpus: int | None
    memory: int
    memory_available: int
    folder: str
    disk_free: int
    accelerators: tuple[str, ...]


def inspect_machine() -> Machine:
    """Ask the system; nothing heavy is imported."""
    import psutil  # noqa: PLC0415 - only the doctor needs it

    memory = psutil.virtual_memory()
    folder = str(Path.cwd())
    return Machine(
        python=f"{platform.python_implementation()} {platform.python_version()}",
        executable=sys.executable,
        system=platform.platform(terse=True),
        architecture=platform.machine(),
        cpus=os.cpu_count(),
        memory=memory.total,
        memory_available=memory.available,
        folder=folder,
        disk_free=psutil.disk_usage(folder).free,
        accelerators=find_accelerators(),
    )


def find_accelerators() -> tuple[str, ...]:
    """Return what the vendors' own tools print of their devices; empty if none is installed."""
    found = [line for command in _TOOLS for line in _printed_lines(command)]
    if sys.platform == "darwin" and platform.machine() == "arm64":
        found.append("Apple GPU (shares the machine's memory)")
    return tuple(found)


def _printed_lines(command: tuple[str, ...]) -> list[str]:
    if shutil.which(command[0]) is None:
        return []
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"{command[0]} can't be run: {error}"]
    lines = [line for line in (done.stdout or done.stderr).splitlines() if line.strip()]
    if done.returncode:
        return [f"{command[0]} failed with {done.returncode}: {next(iter(lines), 'no message')}"]
    return lines
