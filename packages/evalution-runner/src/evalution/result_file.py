"""A result as the one file of its kind in a folder: checked before it costs anything, and whole."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from evalution.results import to_json
from evalution.samples_file import ResultsNotWrittenError, open_new
from evalution.user_input import parse_path, path_errors, read_result_file
from evalution_core import ConfigurationError

RESULT_FILES = ("results.json", "parity.json", "fidelity.json", "noise.json")
"""Names of the results of all kinds, of which a folder holds one."""


def check_free(folder: Path, names: Iterable[str]) -> None:
    """Raise `ConfigurationError` if a folder holds a file of one of these names."""
    for name in names:
        if (folder / name).exists():
            raise ConfigurationError(
                f"{folder} already holds a {name}; name another --output, or move it away"
            )


class Result(Protocol):
    """A result that can be written as JSON."""

    def to_dict(self) -> dict[str, Any]: ...


T = TypeVar("T", bound=Result)


@dataclass(frozen=True, slots=True)
class ResultFile(Generic[T]):
    """The file `name` of results of `type`.

    `what` is the result of in a message, such as "a parity check", and `command` writes one.
    """

    name: str
    type: type[T]
    what: str
    command: str
    newest_schema: int

    def is_in(self, path: Path) -> bool:
        """Return whether `path` is such a file, or a folder that holds one.

        Raises:
            ConfigurationError: the path can't be read.
        """
        with path_errors(path):
            return path.name == self.name or (path / self.name).is_file()

    def make_folder(self, output: str | os.PathLike[str]) -> Path:
        """Return the folder that is to hold the file, made if it isn't there.

        Raises:
            ConfigurationError: it can't be made or written, or holds a result already.
        """
        if not os.fspath(output):
            raise ConfigurationError("output is empty; name a folder, '.' for the current one")
        folder = parse_path(os.fspath(output))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            check_free(folder, RESULT_FILES)
            # Before the models: a folder that can't be written must not cost their answers.
            draft = folder / f"{self.name}.part"
            open_new(draft).close()
            draft.unlink()
        except OSError as error:
            raise ConfigurationError(
                f"the folder {folder} can't be written: {error.strerror}; name another --output"
            ) from error
        return folder

    def write(self, result: T, folder: Path) -> Path:
        """Write the result whole or not at all, and return where it is.

        Raises:
            ResultsNotWrittenError: the disk is full, or the folder is gone.
        """
        return write_whole(folder / self.name, to_json(result.to_dict()) + "\n")

    def read(self, path: str | os.PathLike[str]) -> T:
        """Return the result from its folder, or from the file in it.

        Raises:
            ConfigurationError: there is none, or the file is damaged, of a newer version, or was
                written by something else.
        """
        file = parse_path(os.fspath(path))
        with path_errors(file):
            if file.is_dir():
                file = file / self.name
            if not file.exists():
                raise ConfigurationError(f"there is no {file}; `{self.command}` writes one")
        found = read_result_file(file, self.what, self.newest_schema)
        try:
            return TypeAdapter(self.type).validate_python(found)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise ConfigurationError(
                f"{file} is damaged: {place}: {first['msg'].lower()}"
            ) from None


def write_whole(file: Path, text: str) -> Path:
    """Write `text` to the file, whole or not at all, and return its path.

    Raises:
        ResultsNotWrittenError: the disk is full, or the folder is gone.
    """
    try:
        replace_file(file, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise ResultsNotWrittenError(f"{file} can't be written: {error.strerror}") from error
    return file


def replace_file(file: Path, content: bytes) -> None:
    """Replace a file: a reader, and a disk that loses power, has the old one or the new, whole.

    Once it returns, it is the new one.

    Raises:
        OSError: it can't be written; the old one stays.
    """
    draft = file.with_name(f"{file.name}.part")
    try:
        with open_new(draft) as written:
            written.write(content)
            written.flush()
            os.fsync(written.fileno())
        os.replace(draft, file)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    if sys.platform != "win32":  # which syncs no folders
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
