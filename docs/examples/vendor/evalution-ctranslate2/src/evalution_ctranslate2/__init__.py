"""CTranslate2 engine for Evalution."""

from .engine import CTranslate2

__all__ = ["CTranslate2"]
