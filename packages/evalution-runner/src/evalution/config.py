"""`evalution.config.Model`, where the Engine Guide imports it from."""

from evalution_core import Model

__all__ = ["Model"]
