"""`parity.json`: written once at the end, and read back into the same values."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from evalution.parity.result import SCHEMA_VERSION, ParityResult
from evalution.results import to_json
from evalution.runs.folder import ResultsNotWrittenError
from evalution.user_input import parse_path, path_errors
from evalution_core import ConfigurationError

PARITY = "parity.json"


def parity_folder(output: str | os.PathLike[str]) -> Path:
    """The folder that `write_parity` is to fill, made if it isn't there.

    Raises:
        ConfigurationError: it can't be made or written, or holds a parity result already.
    """
    folder = parse_path(os.fspath(output))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / PARITY).exists():
            raise ConfigurationError(
                f"{folder} already holds a {PARITY}; name another --output, or move it away"
            )
        # Before the models: a folder that can't be written must not cost their answers.
        draft = folder / f"{PARITY}.part"
        draft.touch()
        draft.unlink()
    except OSError as error:
        raise ConfigurationError(
            f"the folder {folder} can't be written: {error.strerror}; name another --output"
        ) from error
    return folder


def write_parity(result: ParityResult, folder: Path) -> Path:
    """Write `parity.json` whole or not at all, and return where it is.

    Raises:
        ResultsNotWrittenError: the disk is full, or the folder is gone.
    """
    file, draft = folder / PARITY, folder / f"{PARITY}.part"
    try:
        draft.write_text(to_json(result.to_dict()) + "\n", "utf-8", "backslashreplace")
        os.replace(draft, file)
    except OSError as error:
        raise ResultsNotWrittenError(f"{file} can't be written: {error.strerror}") from error
    return file


def read_parity(path: str | os.PathLike[str]) -> ParityResult:
    """A result from its folder, or from the `parity.json` in it.

    Raises:
        ConfigurationError: there is none, or the file is damaged, of a newer version, or was
            written by something else.
    """
    file = parse_path(os.fspath(path))
    with path_errors(file):
        if file.is_dir():
            file = file / PARITY
        if not file.exists():
            raise ConfigurationError(
                f"there is no {file}; `evalution parity SPEC --output DIR` writes one"
            )
        content = file.read_bytes()
    found = _document(file, content)
    try:
        return TypeAdapter(ParityResult).validate_python(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"{file} is damaged: {place}: {first['msg'].lower()}") from None


def _document(file: Path, content: bytes) -> dict[str, Any]:
    try:
        found: object = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file} is not JSON: {error}") from None
    known = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    version: object = known.get("schema_version")
    if type(version) is not int or version < 1:
        raise ConfigurationError(f"{file} is no result of a parity check: no schema_version")
    if version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"{file} was written by a newer evalution (schema {version}, this one reads up to "
            f"{SCHEMA_VERSION}); upgrade: pip install --upgrade evalution"
        )
    return known
