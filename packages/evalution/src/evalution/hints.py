"""What to install for what isn't: the first-party distributions, and no guesses.

Only messages read this; no code decides anything by these names.
"""

from __future__ import annotations

from typing import NamedTuple

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

SERVER_HINTS = {"build_openai_compatible_server": "evalution-openai[server]"}
"""Builder of a server, as `evalution.engines` has it, to the requirement that brings it."""


SUITE_HINTS = {"lm_eval": "evalution-lm-eval"}
"""Suite name to the distribution that brings it."""

BACKEND_HINT = "evalution-training"
"""The distribution that reads the section `backend` of a spec."""


class CommandHint(NamedTuple):
    """What a command of another package does, and the requirement that brings it."""

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
