"""Where a checkpoint lies on this machine."""

from __future__ import annotations

from pathlib import Path

from evalution_core import ConfigurationError, builtin_path
from evalution_core.builtins import PREFIX

_WANTED = "a folder with config.json and weights, a Hub id as in owner/name, or builtin:tiny"


def model_folder(path: str, wanted: str = _WANTED) -> Path | None:
    """The folder that `path` names, or that a builtin's checkpoint lies in; None: it is a Hub id.

    Raises:
        ConfigurationError: it can only be a folder, and there is none; the message says to give
            what is `wanted`.
    """
    if path.startswith(PREFIX):
        return builtin_path(path, "safetensors")
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") > 1:
        raise ConfigurationError(f"model folder {path!r} does not exist; give {wanted}")
    return None
