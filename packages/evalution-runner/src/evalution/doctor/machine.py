"""Facts about this machine that decide which engine works: Python, system, and accelerators."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass

_SECONDS = 20
_TOOLS = (("nvidia-smi", "-L"), ("rocm-smi", "--showproductname", "--csv"))
"""Commands that print a line for each device."""


@dataclass(frozen=True, slots=True)
class Machine:
    """`accelerators` holds the lines that the vendors' own tools print, a failure among them."""

    python: str
    executable: str
    system: str
    architecture: str
    cpus: int | None
    accelerators: tuple[str, ...]

    @property
    def has_gpu(self) -> bool:
        """True if a vendor's tool lists a device; the line of a failure begins with its name."""
        tools = tuple(command[0] for command in _TOOLS)
        return any(not line.startswith(tools) for line in self.accelerators)


def inspect_machine() -> Machine:
    """Ask the system and the vendors' tools."""
    return Machine(
        python=f"{platform.python_implementation()} {platform.python_version()}",
        executable=sys.executable,
        system=platform.platform(terse=True),
        architecture=platform.machine(),
        cpus=os.cpu_count(),
        accelerators=tuple(line for command in _TOOLS for line in _list_devices(command)),
    )


def _list_devices(command: tuple[str, ...]) -> list[str]:
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
