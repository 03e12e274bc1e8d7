"""Splits in local folders: written by hand, as the Hub has them, or by `datasets`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet
import pytest

from evalution.rows.hub import SplitFolder, open_rows
from evalution_core import ConfigurationError


def write(path: Path, ids: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"id": number} for number in ids]
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def ids(folder: Path, split: str = "test", config: str | None = None) -> list[int]:
    rows = list(SplitFolder(folder, config, split))
    assert [row.index for row in rows] == list(range(len(rows)))
    return [row["id"] for row in rows]


@pytest.mark.parametrize("ending", ["jsonl", "ndjson", "parquet"])
def test_a_file_of_the_splits_name_is_it(tmp_path: Path, ending: str) -> None:
    write(tmp_path / f"test.{ending}", [1, 2])
    write(tmp_path / f"train.{ending}", [3])
    assert ids(tmp_path) == [1, 2]
    assert ids(tmp_path, "train", "main") == [3]


def test_the_folder_of_the_config_goes_first(tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", [1])
    write(tmp_path / "main" / "test.jsonl", [2])
    write(tmp_path / "other" / "test.jsonl", [3])
    assert ids(tmp_path, config="main") == [2]


def test_shards_of_the_hub_are_one_after_the_other(tmp_path: Path) -> None:
    for shard, numbers in enumerate([[1, 2], [3], [4, 5]]):
        write(tmp_path / "data" / f"test-0000{shard}-of-00003.parquet", numbers)
    write(tmp_path / "data" / "train-00000-of-00001.parquet", [9])
    write(tmp_path / "data" / "test_hard-00000-of-00001.parquet", [8])
    assert ids(tmp_path) == [1, 2, 3, 4, 5]
    place = list(SplitFolder(tmp_path, None, "test"))[3].place
    assert place == f"{tmp_path / 'data' / 'test-00002-of-00003.parquet'}, row 0"


def test_shards_are_those_of_the_config(tmp_path: Path) -> None:
    write(tmp_path / "ARC-Easy" / "test-00000-of-00001.parquet", [1])
    write(tmp_path / "ARC-Challenge" / "test-00000-of-00001.parquet", [2])
    assert ids(tmp_path, config="ARC-Challenge") == [2]


def test_shards_of_several_configs_are_no_split(tmp_path: Path) -> None:
    write(tmp_path / "a" / "test-00000-of-00001.parquet", [1])
    write(tmp_path / "b" / "test-00000-of-00001.parquet", [2])
    with pytest.raises(ConfigurationError) as caught:
        ids(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} holds the split 'test' more than once; name one of: "
        f"{tmp_path / 'a'}, {tmp_path / 'b'}"
    )


def test_shards_of_another_config_are_none(tmp_path: Path) -> None:
    write(tmp_path / "ARC-Challenge" / "test-00000-of-00001.parquet", [1])
    with pytest.raises(ConfigurationError) as caught:
        ids(tmp_path, config="ARC-Easy")
    assert str(caught.value) == (
        f"{tmp_path} holds no split 'test': none of test.jsonl, test.ndjson, test.parquet or "
        "test-*.parquet (nor in its folder ARC-Easy); it holds ARC-Challenge; a split of that name "
        "lies in ARC-Challenge"
    )
    write(tmp_path / "data" / "test-00000-of-00001.parquet", [2])
    assert ids(tmp_path, config="ARC-Easy") == [2]
    assert ids(tmp_path / "ARC-Challenge", config="ARC-Easy") == [1]


def test_shards_are_all_that_their_names_count(tmp_path: Path) -> None:
    for shard in (0, 2):
        write(tmp_path / "data" / f"test-0000{shard}-of-00004-0f1e.parquet", [shard])
    with pytest.raises(ConfigurationError) as caught:
        ids(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'data'} holds a part of the split 'test' alone: test-00001-of-00004.parquet, "
        "test-00003-of-00004.parquet are missing; download the whole split"
    )


def test_shards_may_be_counted_from_one(tmp_path: Path) -> None:
    for shard in (2, 3):
        write(tmp_path / f"test-0000{shard}-of-00003.parquet", [shard])
    with pytest.raises(ConfigurationError, match=r"alone: test-00001-of-00003\.parquet is missing"):
        ids(tmp_path)
    write(tmp_path / "test-00001-of-00003.parquet", [1])
    assert ids(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize(
    "names",
    [
        ["test-00000-of-00001", "test-00000-of-00002", "test-00001-of-00002"],
        ["test-00000-of-00001", "test-00000-of-00001-abc"],
    ],
)
def test_split_that_is_there_twice_is_refused(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        write(tmp_path / f"{name}.parquet", [1])
    with pytest.raises(ConfigurationError) as caught:
        ids(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path} holds the split 'test' more than once: test-0")
    assert str(caught.value).endswith("; delete those of an older version")


def test_a_split_that_is_absent_says_what_was_looked_for(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [1])
    with pytest.raises(ConfigurationError) as caught:
        ids(tmp_path, config="main")
    assert str(caught.value) == (
        f"{tmp_path} holds no split 'test': none of test.jsonl, test.ndjson, test.parquet or "
        "test-*.parquet (nor in its folder main); it holds train.jsonl"
    )


@pytest.mark.wide
@pytest.mark.filterwarnings("default")
def test_what_datasets_saved_is_read_by_it(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    splits = {"test": [1, 2, 3], "train": [4]}
    saved = {
        name: datasets.Dataset.from_list([{"id": number} for number in numbers])
        for name, numbers in splits.items()
    }
    datasets.DatasetDict(saved).save_to_disk(str(tmp_path / "saved"))
    assert ids(tmp_path / "saved") == [1, 2, 3]
    assert ids(tmp_path, "train", "saved") == [4]


@pytest.mark.wide
@pytest.mark.filterwarnings("default")
def test_a_data_set_is_named_by_the_folder_that_it_lies_in(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="needs the package datasets")
    write(tmp_path / "sums" / "test.jsonl", [1, 2, 3])
    write(tmp_path / "sums" / "train.jsonl", [4])
    rows = open_rows(f"hub:{tmp_path / 'sums'}:test")
    assert [row["id"] for row in rows] == [1, 2, 3]
