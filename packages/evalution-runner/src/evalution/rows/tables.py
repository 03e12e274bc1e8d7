"""Parquet files and workbooks, whose few bytes may stand for many: counted before they are made."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import Any, BinaryIO, cast

from evalution.hints import import_extra
from evalution_core import ConfigurationError

MOST_VALUES = 1_000_000
"""Values of a row of Parquet, those in its lists and objects included."""
MOST_MEMORY = 4 << 30
"""Bytes of memory of a process that reads a workbook or tries a Parquet file, where the system
bounds them."""
_ROWS_AT_ONCE = 16


def check_size(path: Path, size: int, most: int) -> None:
    """Refuse a file that would fill the memory."""
    if size > most:
        raise ConfigurationError(
            f"{path} holds {size} bytes, and is read as a whole up to {most}; make "
            "a .jsonl file of it, which is read line by line"
        )


def read_parquet(path: Path, longest: int) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file, of at most `longest` bytes each.

    Another process reads it first: a few bytes may stand for many gigabytes, and what is damaged
    may end the process.

    Raises:
        ConfigurationError: it isn't one, a row goes over a limit, or two columns have one name.
    """
    arrow = import_extra("pyarrow", "parquet", f"reading {path}", "pyarrow")
    parquet = import_extra("pyarrow.parquet", "parquet", f"reading {path}", "pyarrow")
    try:
        _try_parquet(os.path.abspath(path), os.stat(path).st_mtime_ns)
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if len(set(names)) < len(names):
                raise ValueError(f"its columns need a name each of their own, got {names!r:.200}")
            rows = 0
            for batch in file.iter_batches(_ROWS_AT_ONCE):
                widened = _widen_floats(arrow, batch)
                yield from _read_batch(widened, _Measuring(arrow), rows, longest)
                rows += len(batch)
    except (arrow.ArrowException, OSError, OverflowError, RecursionError, ValueError) as error:
        raise ConfigurationError(f"{path} can't be read as Parquet: {error}") from error


@cache
def _try_parquet(path: str, _: int) -> None:
    """Raise `ValueError` unless another process can read a file; tried once for each version."""
    _TRIALS.try_file(path)


def _widen_floats(arrow: Any, batch: Any) -> Any:
    """Return the batch with columns of 32-bit floats as the decimals that they are written as.

    Python's own float of the 32-bit 0.1 is 0.10000000149011612, which no answer equals.
    """
    columns = [
        column.cast(arrow.string()).cast(arrow.float64())
        if arrow.types.is_float32(column.type)
        else column
        for column in batch.columns
    ]
    return arrow.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _read_batch(
    batch: Any, measuring: _Measuring, rows: int, longest: int
) -> Iterator[dict[str, Any]]:
    values, size = measuring.measure(batch)
    is_small = size <= longest and values <= MOST_VALUES
    for part in [batch] if is_small else (batch.slice(n, 1) for n in range(len(batch))):
        values, size = (0, 0) if is_small else measuring.measure(part)
        much = f"{size} bytes, and a row may hold {longest}" if size > longest else ""
        if much or values > MOST_VALUES:
            much = much or f"more than {MOST_VALUES} values in its lists"
            raise ValueError(f"row {rows} holds {much}; leave out columns that aren't needed")
        rows += len(part)
        yield from part.to_pylist()


class _Measuring:
    """Measures what becomes of arrays in Python: a null takes no byte of them, a flag an eighth."""

    def __init__(self, arrow: Any):
        self._arrow = arrow

    def measure(self, batch: Any) -> tuple[int, int]:
        """Return the number of values, all levels together, and their bytes."""
        arrow, count, size = self._arrow, 0, 0
        waiting = list(batch.columns)
        while waiting:
            column = waiting.pop()
            count += len(column)
            kind = column.type
            if isinstance(column, arrow.ExtensionArray):
                waiting.append(column.storage)
            elif arrow.types.is_dictionary(kind):
                size += self._measure_coded(column)
            elif arrow.types.is_map(kind):
                first, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
                waiting += [each.slice(first, end - first) for each in (column.keys, column.items)]
            elif arrow.types.is_struct(kind):
                waiting += column.flatten()
            elif arrow.types.is_nested(kind):
                waiting.append(column.flatten())
            else:
                size += column.nbytes
        return count, size

    def _measure_coded(self, column: Any) -> int:
        """Return the bytes of a column whose values are numbers of a dictionary's."""
        known, kinds = column.dictionary, self._arrow.types
        if not (kinds.is_string(known.type) or kinds.is_binary(known.type)):
            return len(column) * known.nbytes
        compute = import_module("pyarrow.compute")
        lengths = compute.binary_length(known).cast("int64")
        return compute.sum(lengths.take(column.indices)).as_py() or 0


_BEGIN = """
import json, sys
most, count = map(int, sys.argv[1:3])
rest, sys.path[:] = sys.argv[3 : 3 + count], sys.argv[3 + count :]
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
except (ImportError, ValueError):  # the system has no such limit, or a lower one
    pass
"""
_FEW_THREADS = {"OPENBLAS_NUM_THREADS": "1"}  # numpy's take 40 MiB for each processor
_FLAGS = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
"""Those by which Ctrl-C doesn't reach a process of Windows; elsewhere a session of its own does."""


def _make_command(source: str, *rest: str) -> list[str]:
    """Return the command that runs `source` with little memory, on the strings of `rest`."""
    # -P: a file of the working folder must not take the place of a module.
    command = [sys.executable, "-P", "-X", "utf8", "-c", _BEGIN + source]
    return [*command, str(MOST_MEMORY), str(len(rest)), *rest, *sys.path]


def _make_error(said: str, why: str) -> ValueError:
    """Return the error of a reader; without memory it is aborted, or has no word."""
    return ValueError(
        said.rstrip().rpartition("\n")[2]
        or f"it is damaged, or takes more than {MOST_MEMORY} bytes of memory, as {why}"
    )


_TRY_PARQUET = """
def read(path, rows):
    import pyarrow, pyarrow.parquet
    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    with pyarrow.parquet.ParquetFile(path) as file:
        for _ in file.iter_batches(rows, use_threads=False):
            pass
    return pyarrow.default_memory_pool()
for line in sys.stdin:
    said = None
    try:
        read(*json.loads(line)).release_unused()
    except MemoryError:
        sys.exit()
    except BaseException as error:
        said = str(error)
    print(json.dumps(said), flush=True)
"""


class _Trials:
    """Another process that tries Parquet files, kept to the end of this one: its start is slow."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def try_file(self, path: str) -> None:
        """Raise `ValueError` unless the process can read a file."""
        with self._lock:
            was_kept = self._process is not None
            said = self._ask(path)
            if said is not None and was_kept:  # little memory may be left of other files
                self.close()
                said = self._ask(path)
        if said is not None:
            why = "a text that many rows share does; write it again, with smaller rows"
            raise _make_error(said, why)

    def _ask(self, path: str) -> str | None:
        """Return the error that the process has with a file, the empty text if it ended."""
        command = _make_command(_TRY_PARQUET)
        if self._process is None or self._process.args != command:
            self.close()
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_FEW_THREADS},
                start_new_session=True,
                creationflags=_FLAGS,
            )
        asked, answered = cast(Any, self._process.stdin), cast(Any, self._process.stdout)
        try:
            asked.write(json.dumps([path, _ROWS_AT_ONCE]).encode() + b"\n")
            return json.loads(answered.readline())
        except BaseException as error:
            self.close()  # an answer that comes yet would be taken for that to the next file
            if not isinstance(error, OSError | ValueError):
                raise
            return ""

    def close(self) -> None:
        """End the process, or leave it alone where it is none of this one, after a fork."""
        process, self._process = self._process, None
        if process is not None:
            with process:
                process.kill()

    def forget(self) -> None:
        """Begin again in a process that was forked."""
        self.close()
        self._lock = Lock()


_TRIALS = _Trials()
atexit.register(_TRIALS.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TRIALS.forget)


_READ_SHEET = """
def read(path, longest):
    import python_calamine
    with python_calamine.CalamineWorkbook.from_path(path) as book:
        sheets = [book.get_sheet_by_name(name) for name in book.sheet_names]
    named = {sheet.name: sheet for sheet in sheets if sheet.total_height}
    if len(named) > 1:
        sys.exit(f"it has {len(named)} sheets with rows ({', '.join(named)}); save the one that is "
            "meant as a workbook or CSV file of its own")
    for row in (row for sheet in named.values() for row in sheet.to_python(False)):
        while row and row[-1] == "":
            row.pop()
        line = json.dumps(row, ensure_ascii=False, default=str)
        if (longest := longest - len(line)) < 0:
            sys.exit("its cells hold too much text; make a .jsonl file of it")
        print(line)
try:
    read(rest[0], int(rest[1]))
except BaseException as error:
    sys.exit(3 if isinstance(error, MemoryError) else str(error))
"""


def _write_sheet(path: Path, largest: int, output: BinaryIO) -> None:
    """Write the lines of cells by another process; raise `ValueError` if it fails."""
    done = subprocess.run(
        _make_command(_READ_SHEET, str(path), str(largest)),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.PIPE,
        check=False,
        env={**os.environ, **_FEW_THREADS},
        start_new_session=True,
        creationflags=_FLAGS,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace") if done.returncode == 1 else ""
        raise _make_error(said, "a cell far from the others does")


def read_sheet(path: Path, largest: int) -> Iterator[list[Any]]:
    """The lines of cells, read by another process: a cell far out would fill this one's memory.

    Raises:
        ConfigurationError: it isn't a workbook, has several sheets with rows, or goes over a limit.
    """
    import_extra("python_calamine", "excel", f"reading {path}", "python-calamine")
    with TemporaryFile() as lines:
        try:
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    unpacked = sum(member.file_size for member in archive.infolist())
                check_size(path, unpacked, largest)
            _write_sheet(path, largest, lines)
        except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as error:
            raise ConfigurationError(
                f"{path} can't be read as a workbook: {error}; save it again, or as a CSV file"
            ) from error
        lines.seek(0)
        yield from map(json.loads, lines)
