"""What to install for an engine that isn't: the first-party distributions, and no guesses.

Only messages read this; no code decides anything by these names.
"""

from __future__ import annotations

INSTALL_HINTS = {
    "gptqmodel": "evalution-gptqmodel",
    "llamacpp": "evalution-llama-cpp",
    "openai": "evalution-openai",
    "openaicompatible": "evalution-openai",
    "openvino": "evalution-openvino",
    "reference": "evalution-reference",
    "sglang": "evalution-sglang",
    "tensorrtllm": "evalution-tensorrt-llm",
    "tinygrad": "evalution-tinygrad",
    "transformers": "evalution-transformers",
    "transformerscompat": "evalution-transformers",
    "vllm": "evalution-vllm",
}
"""Normalized engine name to the distribution that brings it."""
