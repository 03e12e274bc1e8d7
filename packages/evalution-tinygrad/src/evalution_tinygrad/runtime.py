"""The import of tinygrad and the versions that work.

It is its own module because the others import tinygrad at their top, and this one reports that
tinygrad is missing.
"""

from __future__ import annotations

from importlib.metadata import version

from evalution_enginekit import import_runtime

TINYGRAD = ">=0.13,<0.14"
"""The wheel of 0.14.0 lacks a part of `tinygrad.llm`, which then can't be imported."""
INSTALL = (
    'pip install "tinygrad>=0.13,<0.14" (the model code of 0.14.0 can\'t be imported: its wheel '
    "lacks tinygrad.llm.kernels)"
)


def import_tinygrad() -> str:
    """Import tinygrad and return its version.

    Raises:
        EngineUnavailableError: it is missing, of another version, or fails to load.
    """
    import_runtime("tinygrad", TINYGRAD, install=INSTALL)
    return version("tinygrad")
