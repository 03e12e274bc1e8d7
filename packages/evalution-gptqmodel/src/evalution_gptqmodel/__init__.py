"""GPTQModel for Evalution: the engine `GPTQModel`, for quantised checkpoints."""

from evalution_gptqmodel.engine import GPTQModel

__all__ = ["GPTQModel"]
