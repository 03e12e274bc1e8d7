"""Suites over a declared data set: its rows on the Hub or in files, and its subsets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from evalution.rows.hub import HubRows, SplitFolder, is_same_data
from evalution.rows.local import BUILTIN, Data, Row, Rows, RowSource
from evalution.suites.row_suite import Split
from evalution.suites.suite import PATH
from evalution.user_input import parse_path, path_errors
from evalution_core import ConfigurationError


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set on the Hub and the split that is evaluated.

    Args:
        path: the Hub's id.
        split: the split that is evaluated.
        name: the config, where the data set has several.
        fewshot_split: where solved rows come from; None or the same means the evaluated rows.
        fewshot_rows: the solved rows themselves, in place of a split.
        draw_extra_shot: draw one solved row more than is shown, and leave out one that equals the
            question. lm-evaluation-harness 0.4.13 does so where a task's `fewshot_split` and
            `test_split` are the same word, and where it declares neither.
        rows: number of the evaluated rows, where the data set's card or authors state it.
        licence: SPDX identifier of the data set's licence, or the card's own word for it.
    """

    path: str
    split: str
    name: str | None = None
    fewshot_split: str | None = None
    fewshot_rows: Sequence[Mapping[str, Any]] | None = None
    draw_extra_shot: bool = False
    rows: int | None = None
    licence: str | None = None


@dataclass(frozen=True, slots=True)
class _Absent:
    """Rows that a person didn't give; an error as soon as they are needed."""

    place: str

    def __iter__(self) -> Iterator[Row]:
        raise ConfigurationError(self.place)


@dataclass(kw_only=True)
class DatasetRows:
    """The rows of a declared data set.

    `data` is where they lie: None for the Hub; a file with the evaluated rows; or a folder with
    `<split>.jsonl` or `.parquet` files, a snapshot of the Hub's repository, or what `datasets`
    wrote with `save_to_disk`. `fewshot_data` is a file with solved rows. `revision` (a commit, tag
    or branch) and `cache_dir` are of the Hub.
    """

    task: ClassVar[str]
    """The suite's name, which is lm-evaluation-harness's for the same rows and prompts."""
    dataset: ClassVar[Dataset]

    name: Annotated[
        str | None, Field(description="Name of the suite in results; None takes the task's.")
    ] = None
    data: Annotated[
        Data | None,
        Field(
            description="Rows in place of the Hub's: a file with the evaluated rows, or a folder "
            "with a file for each split; None loads them from the Hub."
        ),
    ] = field(default=None, metadata=PATH)
    fewshot_data: Annotated[
        Data | None,
        Field(description="File with solved rows; None takes those of the data set."),
    ] = field(default=None, metadata=PATH)
    revision: Annotated[
        str | None,
        Field(description="Commit, tag or branch on the Hub; None takes the newest."),
    ] = None
    cache_dir: Annotated[
        str | None,
        Field(description="Folder for downloaded data sets; None takes the Hub's own cache."),
    ] = field(default=None, metadata=PATH)

    @property
    def title(self) -> str:
        return self.name or self.task

    def splits(self) -> Sequence[Split]:
        return [self.make_split(self.dataset, self.data)]

    def make_split(self, dataset: Dataset, data: Data | None, name: str = "") -> Split:
        """The evaluated rows of `dataset` where they lie in `data`, with the source of shots."""
        rows = self._split(dataset, data, dataset.split)
        return Split(
            rows,
            self._find_solved_rows(dataset, data),
            draw_extra_shot=dataset.draw_extra_shot,
            name=name,
        )

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The data set as it is declared; `data` among the options says what stands for it."""
        declared = self.dataset
        return {
            "dataset": {
                "path": declared.path,
                "name": declared.name,
                "split": declared.split,
                "fewshot_split": declared.fewshot_split,
                "fewshot_rows": len(declared.fewshot_rows or ()),
            }
        }

    def _find_solved_rows(self, dataset: Dataset, data: Data | None) -> RowSource | None:
        if self.fewshot_data is not None:
            asked = data
            if data is not None and (folder := local_folder(data)) is not None:
                asked = SplitFolder(folder, dataset.name, dataset.split).only_file
            if asked is not None and is_same_data(asked, self.fewshot_data):
                return None
            return Rows(self.fewshot_data)
        if dataset.fewshot_rows is not None:
            return Rows(dataset.fewshot_rows)
        if dataset.fewshot_split is None or dataset.fewshot_split == dataset.split:
            return None
        return self._split(dataset, data, dataset.fewshot_split)

    def _split(self, dataset: Dataset, data: Data | None, split: str) -> RowSource:
        if data is None:
            return HubRows(dataset.path, dataset.name, split, self.revision, self.cache_dir)
        if (folder := local_folder(data)) is not None:
            return SplitFolder(folder, dataset.name, split)
        if split == dataset.split:
            return Rows(data)
        return _Absent(
            f"solved rows come from the split {split!r}, and {Rows(data).place} holds the rows of "
            f"{dataset.split!r} alone; name a file with solved rows in fewshot_data, a folder with "
            f"both in data, or set num_fewshot to 0"
        )


def local_folder(data: Data) -> Path | None:
    """The folder that `data` names; None if it is a file, rows in memory, or isn't there.

    Raises:
        ConfigurationError: the system refuses the path.
    """
    if not isinstance(data, str | os.PathLike) or str(data).startswith(BUILTIN):
        return None
    path = parse_path(os.fspath(data))
    with path_errors(path):
        return path if path.is_dir() else None
