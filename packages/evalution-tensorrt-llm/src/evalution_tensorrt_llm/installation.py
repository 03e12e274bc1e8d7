"""Which TensorRT-LLM is installed, and what to install where there is none."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from evalution_core import EngineUnavailableError
from evalution_enginekit import import_runtime
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
    if not sys.platform.startswith("linux"):
        raise EngineUnavailableError(f"TensorRT-LLM runs on Linux alone; {install_hint()}")
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
    try:
        return f"{DISTRIBUTION} {installed_version()}"
    except PackageNotFoundError:
        return DISTRIBUTION


def install_hint() -> str:
    """The command that brings a TensorRT-LLM which runs on this machine and Python."""
    if not sys.platform.startswith("linux"):
        return (
            f"on {sys.platform} take the engine Transformers (pip install evalution-transformers) "
            f"or LlamaCpp (pip install evalution-llama-cpp)"
        )
    command = f'pip install "{DISTRIBUTION}{VERSIONS}"'
    if sys.version_info[:2] != _PYTHON:
        wanted, found = (".".join(map(str, v)) for v in (_PYTHON, sys.version_info[:2]))
        return (
            f"TensorRT-LLM has no wheel for Python {found}; make an environment with Python "
            f"{wanted}, and there {command}"
        )
    return f"{command}, on a machine with an NVIDIA GPU and Open MPI's libraries"
