"""Rows from the Hugging Face Hub, through `datasets`: downloaded once, then read from its cache."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast, overload

from evalution.error_boundary import wrap_errors
from evalution.rows.local import (
    HUB,
    Data,
    Row,
    Rows,
    check_row,
    file_rows,
    number_rows,
    rows_path,
)
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


def is_same_data(one: Data, other: Data) -> bool:
    """Report whether both are the same rows: one file however it is named, or equal rows in memory.

    Raises:
        ConfigurationError: there is no such file.
    """
    first, second = Rows(one).source, Rows(other).source
    if first is None or second is None:
        return one is other or (first is second and one == other)
    if HUB in (first[: len(HUB)], second[: len(HUB)]):
        return first == second
    left, right = rows_path(first), rows_path(second)
    with path_errors(left):
        return left.samefile(right)


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
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?!\d)")


@dataclass(frozen=True, slots=True)
class SplitFolder:
    """The rows of one split: `<split>.jsonl`, `.ndjson` or `.parquet`, or a Hub repository's files.

    Of a snapshot of a Hub repository it takes `<split>-*.parquet` wherever they lie; with `config`
    those under a folder of that name, or else in the folder itself or in its `data`. What
    `datasets` wrote with `save_to_disk` is read through `datasets`.
    """

    folder: Path
    config: str | None
    split: str

    @property
    def place(self) -> str:
        return f"{self.folder} (split {self.split})"

    @property
    def only_file(self) -> str | None:
        """The one file of the split; None of several, or of what `datasets` saved."""
        with path_errors(self.folder):
            files = [] if self._find_saved() else self._files()
        return str(files[0]) if len(files) == 1 else None

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
        shards = found = sorted(self.folder.rglob(f"{self.split}-*.parquet"))
        if self.config:
            below = [f for f in shards if self.config in f.relative_to(self.folder).parts[:-1]]
            own = (self.folder, self.folder / "data")
            shards = below or [shard for shard in shards if shard.parent in own]
        folders = sorted({str(shard.parent) for shard in shards})
        if len(folders) > 1:
            raise ConfigurationError(
                f"{self.folder} holds the split {self.split!r} more than once; name one of: "
                f"{', '.join(folders)}"
            )
        if not shards:
            raise ConfigurationError(self._absence(found))
        self._check_complete(shards)
        return shards

    def _check_complete(self, shards: Sequence[Path]) -> None:
        """Refuse a part of the files whose number their names have: `-00000-of-00002`."""
        numbered = [
            (int(found[1]), found[2]) for shard in shards if (found := _SHARD.search(shard.name))
        ]
        held = set(numbered)
        counts = sorted({count for _, count in held})
        missing = [
            f"{self.split}-{number:05}-of-{count}.parquet"
            for count in counts
            for number in _list_numbers(held, count)
            if (number, count) not in held
        ]
        if missing:
            raise ConfigurationError(
                f"{shards[0].parent} holds a part of the split {self.split!r} alone: "
                f"{_list_some(missing)} {'is' if len(missing) == 1 else 'are'} missing; download "
                "the whole split"
            )
        if len(counts) > 1 or len(held) < len(numbered):
            raise ConfigurationError(
                f"{shards[0].parent} holds the split {self.split!r} more than once: "
                f"{_list_some([shard.name for shard in shards])}; delete those of an older version"
            )

    def _absence(self, elsewhere: Sequence[Path]) -> str:
        names = ", ".join(f"{self.split}.{ending}" for ending in _ENDINGS)
        where = f" (nor in its folder {self.config})" if self.config else ""
        listed = _list_some(sorted(path.name for path in self.folder.iterdir()))
        others = sorted({str(shard.parent.relative_to(self.folder)) for shard in elsewhere})
        hint = f"; a split of that name lies in {_list_some(others)}" if others else ""
        return (
            f"{self.folder} holds no split {self.split!r}: none of {names} or "
            f"{self.split}-*.parquet{where}; it holds {listed or 'nothing'}{hint}"
        )


def _list_numbers(held: Set[tuple[int, str]], count: str) -> range:
    """Return the numbers of `count` shards: from 0, or where the last alone is over, from 1."""
    begin = int((0, count) not in held and (int(count), count) in held)
    return range(begin, begin + int(count))


def _list_some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
