"""Containers for generated programs: the command that runs one, and what is missing for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from uuid import uuid4

from evalution_core import ConfigurationError

DEFAULT_IMAGE = f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim"
FOLDER = "/tmp"
"""The only place in a container that can be written to; it is gone with the container."""
READABLE = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime")
_FOLDER_MB, _MOST_PROCESSES, _NOBODY = 64, 64, 65534
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Container:
    """One container of `docker` or `podman`: its image, its limits, and a name to end it by."""

    runtime: str
    image: str
    memory_bytes: int
    name: str = field(default_factory=lambda: f"evalution-{uuid4().hex}")

    def make_command(self) -> list[str]:
        """Return the command that runs `locked_process.py` in it, with a job on standard input."""
        program = Path(__file__).with_name("locked_process.py").read_text(encoding="utf-8")
        limits = {
            "name": self.name,
            "pull": "never",
            "network": "none",
            "memory": self.memory_bytes,
            "memory-swap": self.memory_bytes,
            "pids-limit": _MOST_PROCESSES,
            "cpus": 1,
            "cap-drop": "ALL",
            "security-opt": "no-new-privileges",
            "user": f"{_NOBODY}:{_NOBODY}",
            "tmpfs": f"{FOLDER}:rw,noexec,nosuid,nodev,size={_FOLDER_MB}m",
            "workdir": FOLDER,
            "env": f"HOME={FOLDER}",
        }
        options = [f"--{name}={value}" for name, value in limits.items()]
        flags = ["--rm", "--interactive", "--init", "--read-only"]
        python = ["python", "-I", "-B", "-c", program]
        return [self.runtime, "run", *flags, *options, self.image, *python]

    def kill(self) -> None:
        """End the container, which outlives the command that started it; nothing if it is gone."""
        with suppress(subprocess.TimeoutExpired):
            _ask(self.runtime, "kill", self.name)


@cache
def check_image(runtime: str, image: str) -> None:
    """Check once that a runtime is there and answers, and has the image.

    Raises:
        ConfigurationError: it isn't so; says what to do.
    """
    other = "or write execute: sandbox for a locked process without a container"
    if not image[:1].isalnum():  # the command would take it for an option
        raise ConfigurationError(f"container_image must be the name of an image, got {image!r}")
    if shutil.which(runtime) is None:
        raise ConfigurationError(
            f"execute: {runtime} needs the program {runtime}, which isn't on the PATH; install it, "
            f"{other}"
        )
    try:
        done = _ask(runtime, "image", "inspect", image)
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"{runtime} didn't answer within {_PATIENCE_S:g} s; start it, {other}"
        ) from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise ConfigurationError(
            f"{runtime} can't use the image {image}: {said}; `{runtime} pull {image}` fetches it, "
            f"{other}"
        )


def _ask(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
