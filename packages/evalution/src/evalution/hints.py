"""What to install for an engine that isn't: the first-party distributions, and no guesses.

Only messages read this; no code decides anything by these names.
"""

from __future__ import annotations

INSTALL_HINTS = {
    "GPTQModel": "evalution-gptqmodel",
    "LlamaCpp": "evalution-llama-cpp",
    "OpenAICompatible": "evalution-openai",
    "OpenVINO": "evalution-openvino",
    "Reference": "evalution-reference",
    "SGLang": "evalution-sglang",
    "TensorRTLLM": "evalution-tensorrt-llm",
    "Tinygrad": "evalution-tinygrad",
    "Transformers": "evalution-transformers",
    "TransformersCompat": "evalution-transformers",
    "VLLM": "evalution-vllm",
}
"""Engine name to the distribution that brings it."""
