"""The backends that come with this package; each imports its libraries when it prepares."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from evalution_core import EngineUnavailableError


def import_library(name: str, backend: str) -> Any:
    """Import the module `name`.

    Raises:
        EngineUnavailableError: it isn't installed, and what to install; or its import fails.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise EngineUnavailableError(
            f"backend {backend!r} needs {name}, which isn't installed; "
            f'pip install "evalution-training[{backend}]"'
        ) from error
