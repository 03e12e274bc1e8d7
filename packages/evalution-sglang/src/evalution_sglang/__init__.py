"""The SGLang engine of Evalution: `SGLang`."""

from evalution_sglang.engine import SGLang

__all__ = ["SGLang"]
