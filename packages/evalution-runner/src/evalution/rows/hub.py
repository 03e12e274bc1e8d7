"""Rows from the Hugging Face Hub, through `datasets`: downloaded once, then read from its cache."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast, overload

from evalution.error_boundary import wrap_errors
from evalution.rows.local import HUB, Data, Row, Rows, check_row, file_rows, number_rows
from evalution.user_input import path_errors
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

    @property
    def name(self) -> str:
        """A short name for what the rows are."""
        return Path(self.path).name

    def __iter__(self) -> Iterator[Row]:
        return number_rows(self._loaded(), f"{self.place}, row {{}}")

    def __len__(self) -> int:
        return len(self._loaded())

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return check_row(Row(index, f"{self.place}, row {index}", self._loaded()[index]))

    def _loaded(self) -> Any:
        return _load(self.path, self.config, self.split, self.revision, self.cache_dir)


_NAME = re.compile(
    rf"{HUB}(?P<path>[^:@]+)(@(?P<revision>[^:]+))?(:(?P<config>[^:\[]+))?"
    r":(?P<split>[^:\[\]]+(\[.+\])?)"
)


_CODE_BUILDERS = frozenset({"cache", "eval", "generator", "pandas", "spark", "sql"})
"""Loaders of `datasets` that are no data sets: they unpickle, or run what they are given."""


def open_rows(data: Data) -> HubRows | Rows:
    """The rows of a file, in memory, or of a data set on the Hub.

    The last is `hub:<name>:<split>`, or `hub:<name>:<config>:<split>`, each with `@<revision>`
    behind the name; the name may be a folder that `datasets` knows how to load.

    Raises:
        ConfigurationError: the name has another form, or is a loader's that runs code.
    """
    if not isinstance(data, str) or not data.startswith(HUB):
        return Rows(data)
    if (found := _NAME.fullmatch(data)) is None:
        raise ConfigurationError(
            f"{data} must name a data set and its split: {HUB}NAME:SPLIT, or "
            f"{HUB}NAME:CONFIG:SPLIT where it has several, such as {HUB}openai/gsm8k:main:test; a "
            "revision stands behind the name: NAME@REVISION"
        )
    if found["path"] in _CODE_BUILDERS:
        raise ConfigurationError(
            f"{data} names no data set but a loader that runs code; name a data set with its "
            f"owner, such as {HUB}openai/gsm8k:main:test, or a file of rows"
        )
    return HubRows(found["path"], found["config"], found["split"], found["revision"])


def read_saved_rows(folder: Path) -> Iterator[Row]:
    """The rows of a data set that `datasets` wrote to a folder with `save_to_disk`.

    Raises:
        ConfigurationError: `datasets` isn't installed, or can't read the folder.
    """
    library = _library(f"{folder} was written by datasets.save_to_disk; reading it")
    with wrap_errors(f"{folder} can't be read by datasets", ConfigurationError):
        loaded: Any = library.load_from_disk(str(folder))
    return number_rows(loaded, f"{folder}, row {{}}")


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
            f"{doing} needs the package datasets; pip install 'evalution-runner[datasets]', or "
            "name a local file or folder with data="
        ) from error


_ENDINGS = ("jsonl", "ndjson", "parquet")


@dataclass(frozen=True, slots=True)
class SplitFolder:
    """The rows of one split: `<split>.jsonl`, `.ndjson` or `.parquet`, or a Hub repository's files.

    Of a snapshot of a Hub repository it takes `<split>-*.parquet` wherever they lie, and only
    those under a folder called `config` where there is one. What `datasets` wrote with
    `save_to_disk` is read through `datasets`.
    """

    folder: Path
    config: str | None
    split: str

    @property
    def place(self) -> str:
        return f"{self.folder} (split {self.split})"

    def __iter__(self) -> Iterator[Row]:
        with path_errors(self.folder):
            saved = self._find_saved()
            files = [] if saved else self._files()
        if saved:
            yield from read_saved_rows(saved)
            return
        offset = 0
        for file in files:
            first = offset
            for row in file_rows(file):
                yield replace(row, index=first + row.index) if first else row
                offset += 1

    def _bases(self) -> list[Path]:
        below = [self.folder / self.config] if self.config else []
        return [base for base in [*below, self.folder] if base.is_dir()]

    def _find_saved(self) -> Path | None:
        states = [base / self.split for base in self._bases()]
        return next((state for state in states if (state / "state.json").is_file()), None)

    def _files(self) -> list[Path]:
        for base in self._bases():
            for ending in _ENDINGS:
                if (file := base / f"{self.split}.{ending}").is_file():
                    return [file]
        shards = sorted(self.folder.rglob(f"{self.split}-*.parquet"))
        if self.config:
            below = [f for f in shards if self.config in f.relative_to(self.folder).parts[:-1]]
            shards = below or shards
        folders = sorted({str(shard.parent) for shard in shards})
        if len(folders) > 1:
            raise ConfigurationError(
                f"{self.folder} holds the split {self.split!r} more than once; name one of: "
                f"{', '.join(folders)}"
            )
        if not shards:
            raise ConfigurationError(self._absence())
        return shards

    def _absence(self) -> str:
        names = ", ".join(f"{self.split}.{ending}" for ending in _ENDINGS)
        where = f" (nor in its folder {self.config})" if self.config else ""
        found = sorted(path.name for path in self.folder.iterdir())
        listed = ", ".join(found[:8]) + (", …" if len(found) > 8 else "")
        return (
            f"{self.folder} holds no split {self.split!r}: none of {names} or "
            f"{self.split}-*.parquet{where}; it holds {listed or 'nothing'}"
        )
