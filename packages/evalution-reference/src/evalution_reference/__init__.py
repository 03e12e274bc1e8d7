"""The NumPy engine: default on any machine, and the oracle of every parity test."""

from evalution_reference.engine import Reference

__all__ = ["Reference"]
