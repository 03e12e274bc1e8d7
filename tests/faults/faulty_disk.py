"""A disk that fails on purpose: what a folder is written through, in Python and in SQLite.

Python's files and the calls of `os` are replaced while a `FaultyDisk` is entered; SQLite gets a VFS
that hands everything to its own one. Each operation below the folder is noted in `log`, and the one
of a chosen number fails. No sync waits for the disk.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import errno
import io
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple
from unittest.mock import patch

FULL, BROKEN, SHORT = "disk full", "broken disk", "short write"
FAULTS = (FULL, BROKEN, SHORT)
_NUMBERS = {FULL: errno.ENOSPC, BROKEN: errno.EIO, SHORT: errno.ENOSPC}


class Operation(NamedTuple):
    """Something that changes the disk, or (`report`) something that was shown meanwhile."""

    kind: str
    path: str
    data: Any = None
    offset: int = 0


@dataclass
class FaultyDisk:
    """Watches `folder`; operation number `failing` of the log, from 0, fails as `fault` says."""

    folder: Path
    failing: int | None = None
    fault: str = FULL
    log: list[Operation] = field(default_factory=list)
    _lock: Any = field(default_factory=RLock)

    def note(self, kind: str, path: Any, data: Any = None, offset: int = 0) -> str | None:
        """Add an operation to the log; return the fault if it is to fail."""
        name = os.path.abspath(os.fspath(path))
        if not name.startswith(f"{self.folder}{os.sep}") and name != str(self.folder):
            return None
        with self._lock:
            self.log.append(Operation(kind, name, data, offset))
            return self.fault if len(self.log) - 1 == self.failing else None

    def call(self, kind: str, path: Any, data: Any = None) -> None:
        """Note an operation of Python's; raise `OSError` if it is to fail."""
        if (fault := self.note(kind, path, data)) is not None:
            raise to_error(fault, path)

    @contextmanager
    def __call__(self) -> Iterator[FaultyDisk]:
        with _patch_python(self), _patch_sqlite(self):
            yield self


def to_error(fault: str, path: Any) -> OSError:
    number = _NUMBERS[fault]
    return OSError(number, os.strerror(number), os.fspath(path))


# Python


class _File(io.FileIO):
    disk: FaultyDisk

    def write(self, data: Any, /) -> int:
        content = bytes(data)
        fault = self.disk.note("write", self.name, content, self.tell())
        if fault == SHORT and len(content) > 1:
            super().write(content[: len(content) // 2])
        if fault is not None:
            raise to_error(fault, self.name)
        return super().write(content)

    def truncate(self, size: int | None = None, /) -> int:
        self.disk.call("truncate", self.name, self.tell() if size is None else size)
        return super().truncate(size)


@contextmanager
def _patch_python(disk: FaultyDisk) -> Iterator[None]:
    real_open = io.open

    def faulty_open(
        file: Any, mode: str = "r", buffering: int = -1, *text: Any, **named: Any
    ) -> Any:
        if isinstance(file, int) or not set(mode) & set("wax+"):
            return real_open(file, mode, buffering, *text, **named)
        kind = "create" if "w" in mode or not os.path.exists(file) else "open"
        disk.call(kind, file)
        raw = _File(file, mode.replace("b", "").replace("t", ""))
        raw.disk = disk
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        buffered = io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *text, **named)

    def watch(name: str, kind: str, path: Callable[..., Any], data: Any = None) -> Any:
        real = getattr(os, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not arguments[1] & os.O_CREAT:
                return real(*arguments, **options)
            if name != "open" or not os.path.exists(arguments[0]):
                disk.call(kind, path(*arguments), data and data(*arguments))
            return None if name == "fsync" else real(*arguments, **options)

        return patch.object(os, name, watched)

    with (
        patch.object(io, "open", faulty_open),
        watch("open", "create", lambda path, *_: path),
        watch("replace", "replace", lambda old, _: old, lambda _, new: os.path.abspath(new)),
        watch("unlink", "unlink", lambda path, **_: path),
        watch("mkdir", "mkdir", lambda path, *_: path),
        watch("rmdir", "rmdir", lambda path, *_: path),
        watch("fsync", "sync", lambda number: os.readlink(f"/proc/self/fd/{number}")),
    ):
        yield


# SQLite: https://www.sqlite.org/c3ref/vfs.html and https://www.sqlite.org/c3ref/io_methods.html

_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_OPEN = ctypes.CFUNCTYPE(_I, _P, _P, _P, _I, _P)
_DELETE = ctypes.CFUNCTYPE(_I, _P, ctypes.c_char_p, _I)
_WRITE = ctypes.CFUNCTYPE(_I, _P, _P, _I, _L)
_TRUNCATE = ctypes.CFUNCTYPE(_I, _P, _L)
_SYNC = ctypes.CFUNCTYPE(_I, _P, _I)
_VFS_FULL, _IOERR = 13, 10
_DETAILS = {"write": 3, "sync": 4, "truncate": 6, "unlink": 10}
"""Of SQLITE_IOERR_WRITE and so on."""
_CANTOPEN = 14
_READ_ONLY = 0x1
_DIR_SYNCED = 0x800 | 0x80000
"""SQLITE_OPEN_MAIN_JOURNAL and _WAL: with their first sync SQLite syncs their folder."""


class _Vfs(ctypes.Structure):
    _fields_ = [
        ("version", _I),
        ("file_size", _I),
        ("longest_path", _I),
        ("next", _P),
        ("name", ctypes.c_char_p),
        ("data", _P),
        ("open", _P),
        ("delete", _P),
        ("others", _P * 14),
    ]


class _Methods(ctypes.Structure):
    _fields_ = [
        ("version", _I),
        ("close", _P),
        ("read", _P),
        ("write", _P),
        ("truncate", _P),
        ("sync", _P),
        ("others", _P * 13),
    ]


class _FaultyVfs:
    """SQLite's own VFS, whose calls that change a file pass by `disk`."""

    def __init__(self, disk: FaultyDisk, real: Any):
        self.disk = disk
        self.structure = _Vfs.from_buffer_copy(real.contents)
        self.structure.name = b"faulty"
        self.files: dict[int, str] = {}
        self.unsynced: set[str] = set()
        self.tables: dict[int, tuple[Any, ...]] = {}
        self.real_open, self.real_delete = _OPEN(real.contents.open), _DELETE(real.contents.delete)
        self.callbacks = _OPEN(self.open), _DELETE(self.delete)
        self.structure.open, self.structure.delete = (
            ctypes.cast(callback, _P).value for callback in self.callbacks
        )

    def fail(self, kind: str, path: str, data: Any = None, offset: int = 0) -> int:
        fault = self.disk.note(kind, path, data, offset)
        if fault is None:
            return 0
        if kind == "create":
            return _CANTOPEN
        is_full = kind == "write" and fault == FULL
        return _VFS_FULL if is_full else _IOERR | _DETAILS[kind] << 8

    def open(self, vfs: Any, name: Any, file: int, flags: int, out: Any) -> int:
        path = ctypes.string_at(name).decode() if name else ""
        if path and not flags & _READ_ONLY and not os.path.exists(path):
            if code := self.fail("create", path):
                return code
            if flags & _DIR_SYNCED:
                self.unsynced.add(path)
        code = self.real_open(vfs, name, file, flags, out)
        if code == 0 and path:
            self.files[file] = path
            place = ctypes.cast(file, ctypes.POINTER(_P))
            methods: Any = place[0]
            if methods not in self.tables:
                self.tables[methods] = self.patch(methods)
            place[0] = ctypes.addressof(self.tables[methods][0])
        return code

    def patch(self, methods: int) -> tuple[Any, ...]:
        table = _Methods.from_buffer_copy(ctypes.cast(methods, ctypes.POINTER(_Methods)).contents)
        write, truncate = _WRITE(table.write), _TRUNCATE(table.truncate)

        def faulty_write(file: int, data: Any, size: int, offset: int) -> int:
            content = ctypes.string_at(data, size)
            code = self.fail("write", self.files[file], content, offset)
            if code and self.disk.fault == SHORT:
                write(file, data, size // 2, offset)
            return code or write(file, data, size, offset)

        def faulty_truncate(file: int, size: int) -> int:
            return self.fail("truncate", self.files[file], size) or truncate(file, size)

        def faulty_sync(file: int, flags: int) -> int:
            path = self.files[file]
            if code := self.fail("sync", path):
                return code
            if path in self.unsynced:
                self.unsynced.discard(path)
                self.disk.log.append(Operation("sync folder", os.path.dirname(path)))
            return 0

        kept = _WRITE(faulty_write), _TRUNCATE(faulty_truncate), _SYNC(faulty_sync)
        table.write, table.truncate, table.sync = (ctypes.cast(one, _P).value for one in kept)
        return table, *kept, write, truncate

    def delete(self, vfs: Any, name: bytes, is_synced: int) -> int:
        path = name.decode()
        return self.fail("unlink", path) or self.real_delete(vfs, name, is_synced)


_kept: list[_FaultyVfs] = []
"""Of connections that may still be open: SQLite calls them when they are closed."""


@contextmanager
def _patch_sqlite(disk: FaultyDisk) -> Iterator[None]:
    library = ctypes.CDLL(_sqlite3.__file__)
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    library.sqlite3_vfs_find.argtypes = [ctypes.c_char_p]
    real = library.sqlite3_vfs_find(None)
    faulty = _FaultyVfs(disk, real)
    _kept.append(faulty)
    library.sqlite3_vfs_register(ctypes.byref(faulty.structure), 1)
    try:
        yield
    finally:
        library.sqlite3_vfs_register(real, 1)
        library.sqlite3_vfs_unregister(ctypes.byref(faulty.structure))


# power loss


def lose_power(log: list[Operation], chance: random.Random) -> dict[str, bytes]:
    """Return the files that a disk may hold, by path, when power is lost after these operations.

    What a file was given since its last sync is there or not, write by write, in any order, and a
    write may be torn. Names change in order, and those changed since the folder's last sync may not
    have; the folder itself is there.
    """
    cache = _Cache()
    for done in log:
        cache.take(done)
    return cache.lose(chance)


class _Cache:
    """What a system holds of one folder's files, and what of it the disk surely has."""

    def __init__(self) -> None:
        self.contents: list[bytearray] = []
        self.unsynced: list[list[Operation]] = []
        self.names: dict[str, int] = {}
        self.kept_names: dict[str, int] = {}
        self.renames: list[Operation] = []

    def take(self, done: Operation) -> None:
        match done.kind:
            case "create":
                self.contents.append(bytearray())
                self.unsynced.append([])
                self.rename(done._replace(offset=len(self.contents) - 1))
            case "replace" | "unlink":
                self.rename(done)
            case "write" | "truncate":
                self.unsynced[self.names[done.path]].append(done)
            case "sync" if done.path in self.names:
                number = self.names[done.path]
                for one in self.unsynced[number]:
                    _apply(self.contents[number], one)
                self.unsynced[number].clear()
            case "sync" | "sync folder":
                self.kept_names = dict(self.names)
                self.renames.clear()
            case _:
                pass

    def rename(self, done: Operation) -> None:
        self.renames.append(done)
        _rename(self.names, done)

    def lose(self, chance: random.Random) -> dict[str, bytes]:
        for change in self.renames[: chance.randint(0, len(self.renames))]:
            _rename(self.kept_names, change)
        for content, left in zip(self.contents, self.unsynced, strict=True):
            survivors = [one for one in left if chance.random() < 0.5]
            chance.shuffle(survivors)
            for one in survivors:
                is_torn = one.kind == "write" and chance.random() < 0.3
                data = one.data[: chance.randrange(len(one.data) + 1)] if is_torn else one.data
                _apply(content, one._replace(data=data))
        return {path: bytes(self.contents[number]) for path, number in self.kept_names.items()}


def _rename(names: dict[str, int], done: Operation) -> None:
    if done.kind == "create":
        names[done.path] = done.offset
    elif done.kind == "replace":
        names[done.data] = names.pop(done.path)
    else:
        names.pop(done.path, None)


def _apply(content: bytearray, done: Operation) -> None:
    if done.kind == "truncate":
        del content[done.data :]
        content.extend(bytes(done.data - len(content)))
        return
    content.extend(bytes(max(0, done.offset - len(content))))
    content[done.offset : done.offset + len(done.data)] = done.data
