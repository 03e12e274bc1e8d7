"""Tinker-compatible servers as an Evalution engine."""

from evalution_tinker.engine import Tinker

__all__ = ["Tinker"]
