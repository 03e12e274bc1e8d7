"""The write-ahead log beside a SQLite file: what was committed to it, whatever damage it has.

SQLite takes the frames of the log up to the first damaged one, and drops the rest without a word.
The format: <https://www.sqlite.org/fileformat2.html#walformat>.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

_HEADER, _FRAME_HEADER = 32, 24
_SALTS = slice(8, 16)
_PAGES = [1 << bits for bits in range(9, 17)]
_USUAL_PAGE = 4096
_TABLE_LEAF = 0x0D
_CELLS = 8
"""Offset of the cells' places in such a page."""


def find_last_row(log: Path, columns: int) -> int:
    """Return the highest row id, in tables of so many columns or more, that the log has committed.

    Damage of the log is passed over; a commit whose last frame is damaged is none. 0 if there is no
    log or no such row in it.
    """
    try:
        content = log.read_bytes()
    except FileNotFoundError:
        return 0
    size = int.from_bytes(content[8:12], "big")
    if size not in _PAGES:  # the log's own header is damaged
        size = _USUAL_PAGE
    size += _FRAME_HEADER
    frames = [content[at : at + size] for at in range(_HEADER, len(content), size)]
    # Frames of an older log, with other salts, may follow.
    seen = pairwise([content[16:24], *(frame[_SALTS] for frame in frames)])
    salts = next((one for one, other in seen if one == other), None)
    last = pending = 0
    for frame in frames:
        if frame[_SALTS] == salts:
            pending = max([pending, *_list_rows(frame[_FRAME_HEADER:], columns)])
            if any(frame[4:8]):  # the size of the database, in the last frame of a commit
                last = pending
    return last


def _list_rows(page: bytes, columns: int) -> Iterator[int]:
    if not page or page[0] != _TABLE_LEAF:
        return
    try:
        (count,) = struct.unpack_from(">H", page, 3)
        for place in struct.unpack_from(f">{count}H", page, _CELLS):
            _, at = _read_varint(page, place)
            row, at = _read_varint(page, at)
            header, _ = _read_varint(page, at)
            if header > columns:  # a byte or more for each column, and one for itself
                yield row
    except (struct.error, IndexError):  # a damaged page
        return


def _read_varint(page: bytes, at: int) -> tuple[int, int]:
    """Return a variable-length integer of at most 8 bytes, and the place behind it."""
    value = 0
    for end in range(at + 1, at + 9):
        value = value << 7 | page[end - 1] & 0x7F
        if page[end - 1] < 0x80:
            return value, end
    return value, at + 8
