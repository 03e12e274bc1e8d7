"""Which TensorRT-LLM is installed, and what to install where there is none."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from evalution_enginekit import import_runtime
from evalution_enginekit.runtime import (
    described_distribution,
    linux_install_hint,
    require_linux,
)
from evalution_tensorrt_llm.environment import starting

VERSIONS = ">=1.2,<1.4"
DISTRIBUTION = "tensorrt-llm"

_PARTS = ("llmapi.llm_args", "executor.utils")
_PYTHON = (3, 12)
"""The only Python of a wheel that Evalution runs on too; the other one is 3.10."""


def runtime() -> ModuleType:
    """The module `tensorrt_llm`.

    Raises:
        EngineUnavailableError: it is missing, out of range or broken, or this is no Linux.
    """
    require_linux("TensorRT-LLM")
    with starting():
        found = import_runtime(
            "tensorrt_llm", VERSIONS, distributions=(DISTRIBUTION,), install=install_hint()
        )
        for part in _PARTS:
            import_module(f"tensorrt_llm.{part}")
    return found


def installed_version() -> str:
    """The version number of the installed distribution.

    Raises:
        PackageNotFoundError: there is none.
    """
    return version(DISTRIBUTION)


def described_version() -> str:
    """The distribution and its version, as in `tensorrt-llm 1.2.1`."""
    return described_distribution(DISTRIBUTION)


def install_hint() -> str:
    """The command that brings a TensorRT-LLM which runs on this machine and Python."""
    return linux_install_hint("TensorRT-LLM", _command(), lowest=_PYTHON, highest=_PYTHON)


def _command() -> str:
    return (
        f'pip install "{DISTRIBUTION}{VERSIONS}", on a machine with an NVIDIA GPU and Open MPI\'s '
        f"libraries"
    )
