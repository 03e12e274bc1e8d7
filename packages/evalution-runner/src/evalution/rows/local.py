"""Task rows from a file, from an installed package, or from memory.

Rows are read one after the other, as often as asked: no file but a JSON list is held as a whole.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from shlex import quote
from typing import Any, Protocol, cast

from evalution.rows.tables import check_size, read_parquet, read_sheet
from evalution.user_input import parse_path, path_errors
from evalution_core import ConfigurationError
from evalution_core.builtins import builtin_path
from evalution_core.plugins import did_you_mean, nearest_name

BUILTIN = "builtin:"
HUB = "hub:"
Data = str | os.PathLike[str] | Sequence[Mapping[str, Any]]
"""A path, `builtin:<name>/<rows>`, `hub:<name>:<split>`, or the rows themselves."""
LONGEST_LINE = 64 << 20
"""Bytes of a line and of a row of Parquet, and characters of a text."""
LARGEST_WHOLE_FILE = 1 << 30
"""Bytes of a file that is read as a whole, a .json list or an unpacked workbook."""
MOST_COLUMNS = 10_000
"""Columns of a row."""
DEEPEST_VALUE = 100
"""Levels of lists and objects in one another that a column holds."""
ENDINGS = ".jsonl, .json, .csv, .tsv, .xlsx, .xls, .ods or .parquet"
"""Of the files that rows are read from."""


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
            ConfigurationError: the row lacks the column, or it holds null, NaN, bytes, a list or a
                mapping.
        """
        value: Any = self[column]
        if isinstance(value, str):
            return value
        if value is None or value != value or isinstance(value, list | dict | bytes):
            kind = type(cast(object, value)).__name__
            found = {"NoneType": "null", "bytes": "bytes", "float": "NaN"}.get(kind, f"a {kind}")
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
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise ConfigurationError(
            f"{path}: rows are read from {ENDINGS}, not {path.suffix or 'no ending'!r}"
        )
    return read(path)


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
            f"file, or name a data set of the Hub: {HUB}NAME:SPLIT"
        )
    else:
        path = parse_path(data)
    with path_errors(path):
        if path.is_dir():
            raise ConfigurationError(f"{path} is a folder; name one file in it ({ENDINGS})")
        if not path.exists():
            near = nearest_name(path.name, (p.name for p in _siblings(path)), cutoff=0.75)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigurationError(f"there is no file {path}{hint}")
        if path.is_fifo():
            raise ConfigurationError(
                f"{path} is a pipe, and rows are read more than once; write them to a file first"
            )
    return path


def _siblings(path: Path) -> Iterable[Path]:
    return path.parent.iterdir() if path.parent.is_dir() else ()


def number_rows(rows: Iterable[Mapping[str, Any]], place: str) -> Iterator[Row]:
    """Rows from columns alone; `{}` in `place` becomes the row's number."""
    for index, columns in enumerate(rows):
        yield check_row(Row(index, place.replace("{}", str(index)), columns))


def check_row(row: Row) -> Row:
    """`row` itself.

    Raises:
        ConfigurationError: a text in it is none that can be encoded, or it goes over a limit.
    """
    if len(row.columns) > MOST_COLUMNS:
        raise ConfigurationError(
            f"{row.place}: there are {len(row.columns)} columns, more than {MOST_COLUMNS}; put "
            "those that belong together into one list"
        )
    for column, value in row.columns.items():
        # Most columns are plain, and every row comes by here twice.
        is_plain = type(value) in _NO_TEXT or (type(value) is str and _is_plain_text(value))
        if not is_plain and (problem := _find_problem(value)):
            raise ConfigurationError(f"{row.place}: column {column!r} {problem}")
    return row


_NO_TEXT = frozenset({int, float, bool, type(None)})


def _is_plain_text(text: str) -> bool:
    return text.isascii() and len(text) <= LONGEST_LINE


def _find_problem(value: object) -> str | None:
    level, depth = [value], 0
    while level:
        members: list[object] = []
        for found in level:
            if isinstance(found, str) and not _is_plain_text(found):
                if len(found) > LONGEST_LINE:
                    return f"holds a text of {len(found)} characters, more than {LONGEST_LINE}"
                try:
                    found.encode()
                except UnicodeEncodeError:
                    return "holds a lone surrogate, which is no valid text"
            elif isinstance(found, list | tuple):
                members.extend(cast(Sequence[object], found))
            elif isinstance(found, dict):
                members.extend(cast(dict[object, object], found).values())
        level, depth = members, depth + 1
        if depth > DEEPEST_VALUE and level:
            return f"is nested too deeply, over {DEEPEST_VALUE} levels"
    return None


def decode_lines(path: Path) -> Iterator[str]:
    """The lines of a text file with their ends, without a byte order mark.

    Raises:
        ConfigurationError: it can't be read, or a line isn't UTF-8; names the line and the cure.
    """
    with path_errors(path), path.open("rb") as file:
        lines = iter(partial(file.readline, LONGEST_LINE + 1), b"")
        for number, line in enumerate(lines, start=1):
            if len(line) > LONGEST_LINE:
                raise ConfigurationError(
                    f"{path}, line {number} is longer than {LONGEST_LINE} bytes; a row is a line"
                )
            try:
                if b"\0" in line:
                    raise _make_encoding_error(path, number, "utf-16")
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise _make_encoding_error(path, number, "windows-1252") from error


def _make_encoding_error(path: Path, number: int, likely: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path}, line {number} isn't UTF-8 text; the file looks like {likely}: save it as UTF-8, "
        f"or convert it: iconv -f {likely} -t utf-8 {quote(path.name)} > utf8{path.suffix}"
    )


def _jsonl_rows(path: Path) -> Iterator[Row]:
    index = 0
    for number, line in enumerate(decode_lines(path), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            yield check_row(Row(index, place, _json_object(path, number, line)))
            index += 1


def _json_rows(path: Path) -> Iterator[Row]:
    with path_errors(path):
        check_size(path, path.stat().st_size, LARGEST_WHOLE_FILE)
    try:
        found: object = json.loads("".join(decode_lines(path)))
    except json.JSONDecodeError as error:
        raise ConfigurationError(
            f"{path}, line {error.lineno}, column {error.colno}: not JSON ({error.msg}); a .json "
            "file is one list of rows, a .jsonl file has a row on each line"
        ) from error
    except (ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigurationError(f"{path} can't be read: {problem}") from None
    rows = cast(list[Any], found) if isinstance(found, list) else [found]
    for index, row in enumerate(rows):
        if not isinstance(found, list) or not isinstance(row, dict):
            raise ConfigurationError(
                f"{path}: a .json file is one list of rows, each an object with columns; got "
                f"{json.dumps(row)[:60]}"
            )
        columns = cast(dict[str, Any], row)
        yield check_row(Row(index, f"{path}, row {index}", columns))


def _csv_rows(path: Path) -> Iterator[Row]:
    """The rows of a table with a header; every value is text.

    Columns are parted by tabs in a .tsv file; in a .csv file by whichever of comma, semicolon and
    tab the header has most of.
    """
    csv.field_size_limit(LONGEST_LINE)  # the limit is of the process
    lines = decode_lines(path)
    header = next(lines, "")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=header.count)
    reader = csv.reader(chain([header], lines), delimiter=delimiter, strict=True)
    names: list[str] = []
    index, start = 0, 1
    try:
        for fields in reader:
            place, start = f"{path}, line {start}", reader.line_num + 1
            if not names:
                names = _check_header(place, fields)
            elif any(fields):  # a spreadsheet ends with lines of separators alone
                if len(fields) != len(names):
                    raise ConfigurationError(
                        f"{place}: there are {len(fields)} fields, and the header has {len(names)} "
                        f"columns ({', '.join(names)}); put a text with {delimiter!r} or a line "
                        "break in double quotes"
                    )
                yield check_row(Row(index, place, dict(zip(names, fields, strict=True))))
                index += 1
    except csv.Error as error:
        raise ConfigurationError(
            f"{path}, line {start}: not a table ({error}); a double quote at the front of a text "
            "opens it, and one within it is written twice"
        ) from error


def _check_header(place: str, names: list[str]) -> list[str]:
    if not all(names) or len(set(names)) < len(names):
        raise ConfigurationError(
            f"{place}: the first line names the columns, each once, got {names!r}"
        )
    return names


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


def _parquet_rows(path: Path) -> Iterator[Row]:
    return number_rows(read_parquet(path, LONGEST_LINE), f"{path}, row {{}}")


def _sheet_rows(path: Path) -> Iterator[Row]:
    """The rows of a workbook's one sheet, whose first line names the columns.

    A whole number is one without a fraction, a date is text as in ISO 8601; of a formula it is the
    value that was saved.
    """
    names: list[str] = []
    index = 0
    for number, cells in enumerate(read_sheet(path, LARGEST_WHOLE_FILE), start=1):
        values = [int(c) if isinstance(c, float) and c.is_integer() else c for c in cells]
        place = f"{path}, line {number}"
        if not values:
            continue
        if not names:
            names = _check_header(place, [str(value) for value in values])
        elif len(values) > len(names):
            raise ConfigurationError(
                f"{place}: there is a value in a column that the first line doesn't name "
                f"(columns: {', '.join(names)})"
            )
        else:
            columns = dict(zip_longest(names, values, fillvalue=""))
            yield check_row(Row(index, place, columns))
            index += 1


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
    ".json": _json_rows,
    ".csv": _csv_rows,
    ".tsv": _csv_rows,
    ".parquet": _parquet_rows,
    **dict.fromkeys((".xlsx", ".xls", ".ods"), _sheet_rows),
}
