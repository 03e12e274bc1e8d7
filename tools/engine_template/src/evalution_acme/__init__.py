"""Acme engine for Evalution."""

from evalution_acme.engine import Acme

__all__ = ["Acme"]
