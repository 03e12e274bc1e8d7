"""SGLang for Evalution: `SGLang`."""

from evalution_sglang.engine import SGLang

__all__ = ["SGLang"]
