"""Hugging Face Transformers for Evalution: `Transformers` and `TransformersCompat`."""

from evalution_transformers.engine import Transformers, TransformersCompat

__all__ = ["Transformers", "TransformersCompat"]
