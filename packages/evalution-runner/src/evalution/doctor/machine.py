"""Facts about this machine that decide which engine works: Python, system, and accelerators."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass

_SECONDS = 20
_TOOLS: dict[tuple[str, ...], str] = {
    ("nvidia-smi", "-L"): "GPU ",
    ("rocm-smi", "--showproductname", "--csv"): "card",
}
"""Commands that print a line for each device, and how it begins."""


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
        """True if a vendor's tool lists a device."""
        return any(line.startswith(tuple(_TOOLS.values())) for line in self.accelerators)


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
    if done.returncode:
        lines = [line for line in (done.stdout or done.stderr).splitlines() if line.strip()]
        return [f"{command[0]} failed with {done.returncode}: {next(iter(lines), 'no message')}"]
    # Without a driver rocm-smi says so to stderr, and ends with 0.
    return [line for line in done.stdout.splitlines() if line.startswith(_TOOLS[command])]
