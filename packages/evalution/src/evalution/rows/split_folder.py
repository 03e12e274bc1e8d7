"""A split of a data set that lies in a local folder, however it was put there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from evalution.rows.hub import saved_rows
from evalution.rows.local import Row, file_rows
from evalution.user_input import path_errors
from evalution_core import ConfigurationError

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
            saved = self._saved()
            files = [] if saved else self._files()
        if saved:
            yield from saved_rows(saved)
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

    def _saved(self) -> Path | None:
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
