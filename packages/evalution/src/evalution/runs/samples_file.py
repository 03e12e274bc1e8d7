"""`samples.jsonl`: a line a sample as it is finished, in the order of the rows once a suite is."""

from __future__ import annotations

import os
import time
from array import array
from pathlib import Path
from typing import BinaryIO

from evalution.samples.line import line_of
from evalution.samples.sample import SampleResult

_FLUSH_S = 0.2
_BUFFER = 1 << 20
_SMALL_BUFFER = 1 << 13
"""To read lines from anywhere: each may cost as much as a whole buffer."""


class SamplesFile:
    """Lines of suites that run one after the other. Every method may raise `OSError`.

    Held in memory: three numbers a line of the suite at hand.
    """

    def __init__(self, path: Path):
        self.path = path
        self._file: BinaryIO = path.open("w+b", _BUFFER)
        self._begin = 0
        self._end = 0
        self._flushed_at = 0.0
        self._rows = array("q")
        self._offsets = array("q")

    def append(self, sample: SampleResult) -> None:
        """Put one line. A death may cost those of the last moment: the journal has all."""
        line = line_of(sample)
        self._rows.append(sample.index)
        self._offsets.append(self._end)
        self._file.write(line)
        self._end += len(line)
        # A system call for each line costs more than all else that is done for a sample.
        if (now := time.monotonic()) - self._flushed_at >= _FLUSH_S:
            self._file.flush()
            self._flushed_at = now

    def finish_suite(self) -> None:
        """Order the lines since the last call by row; of several of one row, the last stays."""
        rows, offsets = self._rows, self._offsets
        self._rows, self._offsets = array("q"), array("q")
        if not all(rows[at] < rows[at + 1] for at in range(len(rows) - 1)):
            self._order(rows, offsets)
        self._file.flush()
        self._begin = self._end

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    def _order(self, rows: array[int], offsets: array[int]) -> None:
        latest = {row: at for at, row in enumerate(rows)}
        offsets.append(self._end)
        draft = self.path.with_suffix(".part")
        self._file.flush()
        with draft.open("w+b", _BUFFER) as ordered, self.path.open("rb", _SMALL_BUFFER) as lines:
            for row in sorted(latest):
                at = latest[row]
                lines.seek(offsets[at])
                ordered.write(lines.read(offsets[at + 1] - offsets[at]))
            ordered.flush()
            ordered.seek(0)
            # Killed between here and the end, the lines are written anew from the journal.
            self._file.seek(self._begin)
            while chunk := ordered.read(_BUFFER):
                self._file.write(chunk)
            self._file.truncate()
            self._file.flush()
            self._end = self._file.tell()
        os.unlink(draft)
