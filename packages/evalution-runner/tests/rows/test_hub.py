"""Rows from the Hub, up to the border: `datasets` is a stand-in, or not there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from evalution import Generation
from evalution.rows import hub
from evalution.rows.hub import HubRows, open_rows
from evalution.suites import load_suite
from evalution_core import ConfigurationError

ROWS = [{"goal": f"goal {i}", "sol1": "a", "sol2": "b", "label": i % 2} for i in range(5)]


def named(name: str, **options: Any) -> Any:
    kind: Any = load_suite(name)
    return kind(**options)


class Library(ModuleType):
    """What `datasets` does for us: gives one split, or fails."""

    def __init__(self) -> None:
        super().__init__("datasets")
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None

    def load_dataset(self, path: str, name: str | None, **options: Any) -> list[dict[str, Any]]:
        self.calls.append((path, name, options))
        if self.error is not None:
            raise self.error
        return ROWS


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    found = Library()
    monkeypatch.setitem(sys.modules, "datasets", found)
    hub._load.cache_clear()
    yield found
    hub._load.cache_clear()


def test_a_split_is_loaded_once_and_read_as_often_as_asked(library: Library) -> None:
    rows = HubRows("baber/piqa", None, "validation", revision="abc", cache_dir="cache")
    assert [dict(row.columns) for row in rows] == ROWS
    assert len(rows) == 5
    assert rows[3].columns == ROWS[3]
    assert [row.index for row in rows[1:3]] == [1, 2]
    assert rows[3].place == "baber/piqa (split validation), row 3"
    options = {"split": "validation", "revision": "abc", "cache_dir": "cache"}
    assert library.calls == [("baber/piqa", None, options)]


def test_a_named_suite_without_data_reads_its_splits(library: Library) -> None:
    suite = named("piqa", num_fewshot=2, revision="abc")
    assert suite.check_samples() == 5
    read = [(path, options["split"], options["revision"]) for path, _, options in library.calls]
    assert sorted(read) == [("baber/piqa", "train", "abc"), ("baber/piqa", "validation", "abc")]


def test_a_hub_that_cannot_be_reached_names_the_way_out(library: Library) -> None:
    library.error = ConnectionError("no route")
    with pytest.raises(ConfigurationError) as caught:
        named("arc_easy").check_samples()
    assert str(caught.value) == (
        "suite 'arc_easy': the split 'test' of allenai/ai2_arc, ARC-Easy, can't be had from the "
        "Hub (datasets.load_dataset: ConnectionError: no route); for rows that are already here, "
        "name their file or folder with data="
    )
    library.error = None
    assert len(HubRows("allenai/ai2_arc", "ARC-Easy", "test")) == 5


def test_without_datasets_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    hub._load.cache_clear()
    with pytest.raises(ConfigurationError) as caught:
        named("piqa").check_samples()
    assert str(caught.value) == (
        "suite 'piqa': reading baber/piqa from the Hub needs the package datasets; pip install "
        "'evalution-runner[datasets]', or name a local file or folder with data="
    )


def test_what_was_saved_to_disk_needs_datasets_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation" / "state.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        named("piqa", data=str(tmp_path)).check_samples()
    assert "was written by datasets.save_to_disk; reading it needs the package" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "call"),
    [
        ("hub:me/sums:test", ("me/sums", None, "test", None)),
        ("hub:me/sums:test[:2]", ("me/sums", None, "test[:2]", None)),
        ("hub:me/sums@v1:main:test[:2]", ("me/sums", "main", "test[:2]", "v1")),
    ],
)
def test_own_rows_come_from_the_hub_by_name(library: Library, data: str, call: Any) -> None:
    suite = Generation(data=data, prompt="Why {goal}?", target="sol1", fewshot_data=data)
    assert (suite.title, suite.check_samples()) == ("sums", 5)
    ((path, config, options),) = library.calls
    assert (path, config, options["split"], options["revision"]) == call


def test_a_name_without_its_split_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must name a data set and its split: hub:NAME:SP"):
        Generation(data="hub:openai/gsm8k", prompt="q", target="a").check_samples()


def test_loader_that_unpickles_is_no_data_set() -> None:
    with pytest.raises(ConfigurationError, match="hub:pandas:train names no data set but a loader"):
        open_rows("hub:pandas:train")
