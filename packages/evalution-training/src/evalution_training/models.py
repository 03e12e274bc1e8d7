"""The model of a spec in two forms: the dict that backends get, and our `Model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from evalution_core import ConfigurationError, Model
from evalution_core.plugins import did_you_mean

NAME = "name"
CHECKPOINTS = ("load_checkpoint_path", "init_from_checkpoint")
"""Weights to take in place of those that `name` names; the first that is given counts."""
KEYS = (NAME, *CHECKPOINTS, "renderer_name")
"""Keys of a backend's model that are not fields of `Model`."""

_FIELDS = tuple(field.name for field in fields(Model) if field.name != "path")
_BUILTIN = "builtin:"


def training_model(declared: object, folder: Path | None = None) -> dict[str, Any]:
    """Return the dict that `prepare` gets: `name`, and what else is declared, without Nones.

    Args:
        declared: a `Model`, a mapping with `KEYS` and fields of `Model`, or a name. `path` is
            another word for `name`.
        folder: where relative paths of files start.

    Raises:
        ConfigurationError: there is no name or there are two, or a key is unknown.
    """
    given = _mapping(declared)
    known = (*KEYS, "path", *_FIELDS)
    for key in given:
        if key not in known:
            raise ConfigurationError(
                f"model has no field {key!r}{did_you_mean(str(key), known)} (fields with a "
                f"backend: {', '.join(known)})"
            )
    path = given.pop("path", None)
    name = given.pop(NAME, path)
    if path not in (None, name):
        raise ConfigurationError(f"model has the name {name!r} and the path {path!r}; give one")
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            f"a backend needs the model's name, got {name!r}; for instance `model: builtin:tiny`"
        )
    for key in (*CHECKPOINTS, "renderer_name"):
        if key in given and not (isinstance(given[key], str) and given[key]):
            raise ConfigurationError(f"model.{key} must be a non-empty text, got {given[key]!r}")
    found = {NAME: name, **given}
    for key in (NAME, *CHECKPOINTS, "tokenizer_path"):
        if folder is not None and key in found:
            found[key] = _beside(found[key], folder, key)
    return found


def to_evaluated_model(declared: Mapping[str, Any]) -> Model:
    """Return the model as results name it: its checkpoint where one is loaded, else its name.

    A checkpoint is given the tokenizer and the label of the model that it was made from, unless
    there are others.
    """
    name = declared[NAME]
    path = next((declared[key] for key in CHECKPOINTS if declared.get(key)), name)
    own = {key: declared[key] for key in _FIELDS if key in declared}
    made_from = {"label": name, "tokenizer_path": name} if path != name else {}
    return Model(path, **(made_from | own))


def _mapping(declared: object) -> dict[str, Any]:
    if isinstance(declared, Model):
        values = {field.name: getattr(declared, field.name) for field in fields(Model)}
        return {key: value for key, value in values.items() if value not in (None, False, {})}
    if isinstance(declared, str | Path):
        return {NAME: str(declared)}
    if declared is None:
        return {}
    if isinstance(declared, Mapping):
        found = cast("Mapping[str, Any]", declared)
        return {key: value for key, value in found.items() if value is not None}
    raise ConfigurationError(f"model must be a Model, a mapping or a name, got {declared!r}")


def _beside(value: object, folder: Path, key: str) -> object:
    """Return the absolute path of a file beside the spec; a Hub id or a URI as it is."""
    if not isinstance(value, str) or value.startswith(_BUILTIN) or "://" in value:
        return value
    beside = (folder / Path(value).expanduser()).absolute()
    if beside.exists():
        return str(beside)
    if value.startswith(("./", "../", "~")):
        raise ConfigurationError(f"there is no {beside}, which model.{key} names")
    return value
