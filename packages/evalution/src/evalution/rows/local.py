"""Task rows from a JSONL or Parquet file, from an installed package, or from memory.

Rows are read one after the other, as often as asked: a file is never held as a whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from evalution.hints import import_extra
from evalution.user_input import parse_path, path_errors
from evalution_core import ConfigurationError
from evalution_core.builtins import builtin_path
from evalution_core.plugins import did_you_mean, nearest_name

BUILTIN = "builtin:"
Data = str | os.PathLike[str] | Sequence[Mapping[str, Any]]
"""A path, `builtin:<name>/<rows>`, or the rows themselves."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its number in the file from 0, where it came from, and its columns.

    `subset` is the part of the suite it belongs to, such as a subject; empty in a suite of one.
    """

    index: int
    place: str
    columns: Mapping[str, Any]
    subset: str = ""

    def __getitem__(self, column: str) -> Any:
        """The value of a column.

        Raises:
            ConfigurationError: the row lacks it; names the row, what it has, and the nearest.
        """
        try:
            return self.columns[column]
        except KeyError:
            raise ConfigurationError(
                f"{self.place}: there is no column {column!r}{did_you_mean(column, self.columns)} "
                f"(columns: {', '.join(self.columns)})"
            ) from None

    def text(self, column: str) -> str:
        """A column's value as text.

        Raises:
            ConfigurationError: the row lacks the column, or it holds null, a list or a mapping.
        """
        value = self[column]
        if isinstance(value, str):
            return value
        if value is None or isinstance(value, list | dict):
            found = "null" if value is None else f"a {type(value).__name__}"  # pyright: ignore[reportUnknownArgumentType]
            raise ConfigurationError(f"{self.place}: column {column!r} holds {found}, not text")
        return str(value)

    def texts(self, column: str) -> list[str]:
        """A column's list of texts.

        Raises:
            ConfigurationError: the row lacks the column, or it holds something else.
        """
        found = self[column]
        members = cast(Sequence[Any], found) if isinstance(found, list | tuple) else [None]
        if not all(isinstance(member, str) for member in members):
            raise ConfigurationError(
                f"{self.place}: column {column!r} must hold a list of texts, got {found!r}"
            )
        return list(members)

    def index_in(self, column: str, count: int) -> int:
        """A column's value as an index below `count`, also where it is written as text.

        Raises:
            ConfigurationError: the row lacks the column, or it holds no such index.
        """
        found = self[column]
        index = int(found) if isinstance(found, str) and found.isdecimal() else found
        if isinstance(index, int) and 0 <= index < count:
            return int(index)
        raise ConfigurationError(
            f"{self.place}: column {column!r} holds {found!r}, which is no index from 0 to "
            f"{count - 1}"
        )


class RowSource(Protocol):
    """Rows that can be iterated any number of times, numbered from 0."""

    @property
    def place(self) -> str:
        """Name of the rows in a message."""
        ...

    def __iter__(self) -> Iterator[Row]: ...


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that can be iterated any number of times.

    Iterating raises `ConfigurationError` for a file that is missing or isn't what its ending says,
    with the line at fault.
    """

    data: Data

    @property
    def name(self) -> str:
        """A short name for what the rows are: the file's, without its ending."""
        if (source := self.source) is None:
            return "rows"
        return Path(source.removeprefix(BUILTIN)).stem or "rows"

    @property
    def source(self) -> str | None:
        """The path or `builtin:` name; None for rows in memory."""
        return os.fspath(self.data) if isinstance(self.data, str | os.PathLike) else None

    @property
    def place(self) -> str:
        """Name of the rows in a message."""
        return self.source or "data"

    def __iter__(self) -> Iterator[Row]:
        if not isinstance(self.data, str | os.PathLike):
            return number_rows(self.data, "row {} of data")
        return file_rows(rows_path(os.fspath(self.data)))


def file_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, read as they are needed.

    Raises:
        ConfigurationError: its ending is none of a rows file, or it isn't what the ending says.
    """
    if path.suffix == ".parquet":
        return number_rows(_parquet_rows(path), f"{path}, row {{}}")
    if path.suffix in (".jsonl", ".ndjson"):
        return _jsonl_rows(path)
    raise ConfigurationError(
        f"{path}: rows are read from .jsonl or .parquet, not {path.suffix or 'no ending'!r}"
        f"{_CONVERSION.get(path.suffix.lower(), '')}"
    )


def is_same_data(one: Data, other: Data) -> bool:
    """Report whether both are the same rows: one file however it is named, or equal rows in memory.

    Raises:
        ConfigurationError: there is no such file.
    """
    first, second = Rows(one).source, Rows(other).source
    if first is None or second is None:
        return one is other or (first is second and one == other)
    left, right = rows_path(first), rows_path(second)
    with path_errors(left):
        return left.samefile(right)


def rows_path(data: str) -> Path:
    """The file behind a path or a `builtin:<name>/<rows>`.

    Raises:
        ConfigurationError: there is no such file, or no package that brings such rows.
    """
    if data.startswith(BUILTIN):
        name, _, rows = data.removeprefix(BUILTIN).partition("/")
        path = builtin_path(BUILTIN + name, f"rows/{rows}")
    elif "://" in data:
        raise ConfigurationError(
            f"{data} is an address, and rows are read from local files; download it and name the "
            "file"
        )
    else:
        path = parse_path(data)
    with path_errors(path):
        if path.is_dir():
            raise ConfigurationError(f"{path} is a folder; name one .jsonl or .parquet file in it")
        if not path.exists():
            near = nearest_name(path.name, (p.name for p in _siblings(path)), cutoff=0.75)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigurationError(f"there is no file {path}{hint}")
    return path


_CONVERSION = {
    ".json": "; `jq -c '.[]' rows.json > rows.jsonl` makes one of a list",
    ".csv": '; `pandas.read_csv("rows.csv").to_json("rows.jsonl", orient="records", '
    "lines=True)` makes one",
}


def _siblings(path: Path) -> Iterable[Path]:
    return path.parent.iterdir() if path.parent.is_dir() else ()


def number_rows(rows: Iterable[Mapping[str, Any]], place: str) -> Iterator[Row]:
    """Rows from columns alone; `{}` in `place` becomes the row's number."""
    for index, columns in enumerate(rows):
        yield check_row(Row(index, place.replace("{}", str(index)), columns))


def check_row(row: Row) -> Row:
    """`row` itself.

    Raises:
        ConfigurationError: a text in it is none that can be encoded.
    """
    for column, value in row.columns.items():
        # Most columns are plain, and every row comes by here twice.
        is_plain = value.isascii() if type(value) is str else type(value) in _NO_TEXT
        if not is_plain and _has_lone_surrogate(value):
            raise ConfigurationError(
                f"{row.place}: column {column!r} holds a lone surrogate, which is no valid text"
            )
    return row


_NO_TEXT = frozenset({int, float, bool, type(None)})


def _has_lone_surrogate(value: object) -> bool:
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            if found.isascii():
                continue
            try:
                found.encode()
            except UnicodeEncodeError:
                return True
        elif isinstance(found, list | tuple):
            waiting.extend(cast(Sequence[object], found))
        elif isinstance(found, dict):
            waiting.extend(cast(dict[object, object], found).values())
    return False


def _jsonl_rows(path: Path) -> Iterator[Row]:
    index = 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    place = f"{path}, line {number}"
                    yield check_row(Row(index, place, _json_object(path, number, line)))
                    index += 1
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} isn't UTF-8 text: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read: {error.strerror}") from error


def _json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigurationError(
            f"{path}, line {number}, column {error.colno}: not JSON ({error.msg}); each line of "
            "rows is one JSON object"
        ) from error
    except (ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigurationError(f"{path}, line {number}: can't be read: {problem}") from None
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"{path}, line {number}: a row is a JSON object with columns, not {line.strip()[:60]}"
        )
    return found  # pyright: ignore[reportUnknownVariableType]


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    arrow = import_extra("pyarrow", "parquet", f"reading {path}", "pyarrow")
    parquet = import_extra("pyarrow.parquet", "parquet", f"reading {path}", "pyarrow")
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from batch.to_pylist()
    except (arrow.ArrowException, OSError) as error:
        raise ConfigurationError(f"{path} can't be read as Parquet: {error}") from error
