"""The installed TensorRT-LLM: its import, versions, install hint and environment variables."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from evalution_enginekit import import_runtime
from evalution_enginekit.runtime import (
    describe_distribution,
    linux_install_hint,
    process_environment,
    require_linux,
)

VERSIONS = ">=1.2,<1.4"
DISTRIBUTION = "tensorrt-llm"

_QUIET = {"TLLM_LOG_LEVEL": "warning"}
_PRIVATE = {"TRTLLM_NO_USAGE_STATS": "1"}
_PARTS = ("llmapi.llm_args", "executor.utils")
_PYTHON = (3, 12)
"""The only Python of a wheel that Evalution runs on too; the other one is 3.10."""


@contextmanager
def runtime_environment() -> Generator[None]:
    """Set the environment in which the runtime is imported and started.

    It sends no usage statistics, logs warnings unless the caller has asked for more, and prints to
    standard error, because standard output is for results. Afterwards the process environment is
    what it was; processes started meanwhile keep theirs.
    """
    with process_environment(_PRIVATE, defaults=_QUIET), redirect_stdout(sys.stderr):
        yield


def import_tensorrt_llm() -> ModuleType:
    """Import `tensorrt_llm`.

    Raises:
        EngineUnavailableError: it is missing, out of range or broken, or this is not Linux.
    """
    require_linux("TensorRT-LLM")
    with runtime_environment():
        module = import_runtime(
            "tensorrt_llm", VERSIONS, distributions=(DISTRIBUTION,), install=install_hint()
        )
        for part in _PARTS:
            import_module(f"tensorrt_llm.{part}")
    return module


def installed_version() -> str:
    """Return the version number of the installed distribution.

    Raises:
        PackageNotFoundError: there is none.
    """
    return version(DISTRIBUTION)


def describe_version() -> str:
    """Return the distribution and its version, as in `tensorrt-llm 1.2.1`."""
    return describe_distribution(DISTRIBUTION)


def install_hint() -> str:
    """Return the command that installs a TensorRT-LLM for this machine and Python."""
    command = (
        f'pip install "{DISTRIBUTION}{VERSIONS}", on a machine with an NVIDIA GPU and Open MPI\'s '
        f"libraries"
    )
    return linux_install_hint("TensorRT-LLM", command, lowest=_PYTHON, highest=_PYTHON)
