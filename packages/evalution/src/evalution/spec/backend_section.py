"""The section `backend` of a spec: read by the package that brings training backends.

That package is found by the entry-point group `evalution.backends`, whose value is a
`BackendReader`; the runner knows none of its backends.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalution.error_boundary import wrap_errors
from evalution.hints import BACKEND_HINT
from evalution.runs.backend import BackendReader, ModelBackend
from evalution_core import ConfigurationError, EngineUnavailableError
from evalution_core.entries import installed

GROUP = "evalution.backends"


def read_backend(
    name: str, options: Mapping[str, Any], model: object, folder: Path
) -> ModelBackend:
    """The backend of a spec in `folder` whose section `model` is `model`.

    Raises:
        ConfigurationError: nothing that brings backends is installed, more than one package does,
            or the backend, its options or the model are wrong.
        EngineUnavailableError: the backend's package can't be imported.
    """
    reader = _reader()
    with wrap_errors(f"backend {name!r} can't be made", ConfigurationError):
        return reader(name, options, model, folder)


def _reader() -> BackendReader:
    points = installed(GROUP)
    if not points:
        raise ConfigurationError(
            "the section 'backend' needs a package of training backends and none is installed; "
            f"pip install {BACKEND_HINT}"
        )
    if len(points) > 1:
        sources = " and ".join(point.dist.name if point.dist else point.value for point in points)
        raise ConfigurationError(
            f"the section 'backend' is read by {sources}; uninstall all of them but one"
        )
    (point,) = points
    try:
        return point.load()
    except Exception as error:  # the border to foreign code: a package may raise anything
        raise EngineUnavailableError(
            f"training backends ({point.value}) can't be loaded: {type(error).__name__}: {error}"
        ) from error
