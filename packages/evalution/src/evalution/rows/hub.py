"""Rows from the Hugging Face Hub, through `datasets`: downloaded once, then read from its cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast, overload

from evalution.error_boundary import wrap_errors
from evalution.rows.local import Row, checked_row, numbered
from evalution_core import ConfigurationError

_HELD = 256


@dataclass(frozen=True, slots=True)
class HubRows(Sequence[Row]):
    """One split of a data set on the Hub; rows are read from disk, one by one."""

    path: str
    config: str | None
    split: str
    revision: str | None = None
    cache_dir: str | None = None

    @property
    def place(self) -> str:
        config = f", {self.config}" if self.config else ""
        return f"{self.path} (split {self.split}{config})"

    def __iter__(self) -> Iterator[Row]:
        return numbered(self._loaded(), f"{self.place}, row {{}}")

    def __len__(self) -> int:
        return len(self._loaded())

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return checked_row(Row(index, f"{self.place}, row {index}", self._loaded()[index]))

    def _loaded(self) -> Any:
        return _load(self.path, self.config, self.split, self.revision, self.cache_dir)


def saved_rows(folder: Path) -> Iterator[Row]:
    """The rows of a data set that `datasets` wrote to a folder with `save_to_disk`.

    Raises:
        ConfigurationError: `datasets` isn't installed, or can't read the folder.
    """
    library = _library(f"{folder} was written by datasets.save_to_disk; reading it")
    with wrap_errors(f"{folder} can't be read by datasets", ConfigurationError):
        loaded: Any = library.load_from_disk(str(folder))
    return numbered(loaded, f"{folder}, row {{}}")


@lru_cache(maxsize=_HELD)
def _load(
    path: str, config: str | None, split: str, revision: str | None, cache_dir: str | None
) -> Any:
    library = _library(f"reading {path} from the Hub")
    try:
        with wrap_errors("datasets.load_dataset", ConfigurationError):
            return library.load_dataset(
                path, config, split=split, revision=revision, cache_dir=cache_dir
            )
    except ConfigurationError as error:
        raise ConfigurationError(
            f"the split {split!r} of {path}{f', {config},' if config else ''} can't be had from "
            f"the Hub ({error}); for rows that are already here, name their file or folder with "
            "data="
        ) from error.__cause__


def _library(doing: str) -> Any:
    try:
        return cast(Any, import_module("datasets"))
    except ImportError as error:
        raise ConfigurationError(
            f"{doing} needs the package datasets; pip install 'evalution[datasets]', or name a "
            "local file or folder with data="
        ) from error
