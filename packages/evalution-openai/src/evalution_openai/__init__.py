"""OpenAI-style endpoints for Evalution: the engine that asks any such server."""

from evalution_openai.engine import OpenAICompatible

__all__ = ["OpenAICompatible"]
