"""The installed SGLang: its import, versions, install hint and environment variables."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from evalution_enginekit import import_runtime
from evalution_enginekit.runtime import (
    describe_distribution,
    linux_install_hint,
    process_environment,
    require_distribution,
    require_linux,
)
from evalution_sglang.upstream import Engine, MakesModelConfig

VERSIONS = ">=0.5.22,<0.5.24"
DISTRIBUTIONS = ("sglang",)
QUIET = {
    # Upstream replaces the handlers of the root logger otherwise, in this process too.
    "SGLANG_LOGGING_CONFIG_PATH": str(Path(__file__).with_name("logging.json")),
    # Each of its processes warns of missing kernels for other devices.
    "PYTHONWARNINGS": "ignore",
}
"""Defaults of environment variables while SGLang is imported and started."""
CPU = {
    # Without it, kernels of another runtime are loaded, and the scheduler dies.
    "SGLANG_USE_CPU_ENGINE": "1",
}
"""Environment variables that are set then on a CPU."""
SCORES = {
    # Log-probabilities of the model's own distribution, whatever the temperature.
    "SGLANG_RETURN_ORIGINAL_LOGPROB": "1",
    # The window is longer than the model's own by tokens that are never fed.
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
}
"""Environment variables under which SGLang starts."""

_ENGINE = "sglang.srt.entrypoints.engine"
_ARGUMENTS = "sglang.srt.server_args"
_MODEL_CONFIG = "sglang.srt.configs.model_config"
_LOWEST, _HIGHEST = (3, 11), (3, 13)
_GPUS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")


@dataclass(frozen=True, slots=True)
class Library:
    """The classes of SGLang that are called, and the one that holds the engine's arguments."""

    engine: type[Engine]
    arguments: type[Any]
    model_config: MakesModelConfig


def import_sglang() -> Library:
    """Import SGLang and leave this process as it was.

    Raises:
        EngineUnavailableError: it is missing, out of range or broken, or this is not Linux.
    """
    require_linux("SGLang")
    require_distribution(*DISTRIBUTIONS, install=install_hint())
    switches = CPU if find_device() == "cpu" else {}
    logger = logging.getLogger("sglang")
    if logger.level == logging.NOTSET:
        # Each start logs some five hundred arguments.
        logger.setLevel(logging.ERROR)
    with process_environment(switches, defaults=QUIET), _event_loop_policy():
        module: Any = import_runtime(
            _ENGINE, VERSIONS, distributions=DISTRIBUTIONS, install=install_hint()
        )
        arguments: Any = import_module(_ARGUMENTS)
        config: Any = import_module(_MODEL_CONFIG)
    return Library(module.Engine, arguments.ServerArgs, config.ModelConfig)


def find_device() -> str:
    """Return the kind of device that torch finds: `cuda`, `xpu`, …, or `cpu`.

    Raises:
        EngineUnavailableError: torch is missing.
    """
    torch: Any = import_runtime("torch", ">=2.9", install=install_hint())
    if not torch.accelerator.is_available():
        return "cpu"
    return str(torch.accelerator.current_accelerator().type)


def describe_version() -> str:
    """Return the installed version, as in `sglang 0.5.23`."""
    return describe_distribution(*DISTRIBUTIONS)


def install_hint() -> str:
    """Return the command that installs SGLang for this machine and Python, or another engine."""
    return linux_install_hint("SGLang", _install_command(), lowest=_LOWEST, highest=_HIGHEST)


def _install_command() -> str:
    if any(Path(device).exists() for device in _GPUS):
        return f'pip install "sglang{VERSIONS}"'
    return (
        f'pip install "sglang{VERSIONS}", whose kernels need a GPU; none is here, where VLLM '
        f"(pip install evalution-vllm), Transformers and LlamaCpp run on the CPU"
    )


@contextmanager
def _event_loop_policy() -> Generator[None]:
    """Restore the event loop policy, which upstream replaces when it is imported."""
    # Python 3.14, which deprecates policies, has no SGLang.
    before = asyncio.get_event_loop_policy()  # pyright: ignore[reportDeprecated]
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(before)  # pyright: ignore[reportDeprecated]
