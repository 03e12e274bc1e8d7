"""tinygrad for Evalution: GGUF models on any accelerator that tinygrad drives, and on CPUs."""

from evalution_tinygrad.engine import Tinygrad

__all__ = ["Tinygrad"]
