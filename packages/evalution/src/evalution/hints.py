"""Install hints: names of the first-party distributions, and no guesses.

Only messages read this; no code decides anything by these names.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from evalution_core import ConfigurationError

INSTALL_HINTS = {
    "GPTQModel": "evalution-gptqmodel",
    "LlamaCpp": "evalution-llama-cpp",
    "OpenAICompatible": "evalution-openai",
    "OpenVINO": "evalution-openvino",
    "RayReplicas": "evalution-ray",
    "Reference": "evalution-reference",
    "SGLang": "evalution-sglang",
    "TensorRTLLM": "evalution-tensorrt-llm",
    "Tinker": "evalution-tinker",
    "Tinygrad": "evalution-tinygrad",
    "Transformers": "evalution-transformers",
    "TransformersCompat": "evalution-transformers",
    "VLLM": "evalution-vllm",
}
"""Engine name to the distribution that brings it."""

SERVER_HINTS = {"build_openai_compatible_server": '"evalution-openai[server]"'}
"""Builder of a server, as `evalution.engines` has it, to the requirement that brings it."""


SUITE_HINTS = {"lm_eval": "evalution-lm-eval"}
"""Suite name to the distribution that brings it."""

BACKEND_HINT = "evalution-training"
"""The distribution that reads the section `backend` of a spec."""


def import_extra(module: str, extra: str, purpose: str, package: str) -> Any:
    """A module that an extra of the runner brings, imported when it is needed.

    Raises:
        ConfigurationError: it isn't installed; names the purpose and the command to install it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"{purpose} needs {package}, which isn't installed; pip install 'evalution[{extra}]'"
        ) from error


class CommandHint(NamedTuple):
    """Summary of a command of another package, and the requirement that brings it."""

    summary: str
    requirement: str


COMMAND_HINTS = {
    "bench": CommandHint("Measure how fast an engine or a server answers.", "evalution-guidellm"),
    "inspect-log": CommandHint("Write a run as logs of Inspect, one a suite.", "evalution-inspect"),
    "serve": CommandHint(
        "Serve a model over HTTP, to clients of OpenAI and others.", "evalution-openai[server]"
    ),
}
"""Verb to what is known of it before anything is loaded."""


@contextmanager
def note_working_folder(name: str) -> Generator[None]:
    """Note with an error of loading `module:Class` that its module is in the working folder."""
    try:
        yield
    except ConfigurationError as error:
        module = name.partition(":")[0]
        file = Path(*module.split(".")).with_suffix(".py") if module.strip(".") else None
        if file is not None and ":" in name and module not in sys.modules and file.is_file():
            error.add_note(
                f"{file} is in the working folder, which `python -m evalution` looks into"
            )
        raise
