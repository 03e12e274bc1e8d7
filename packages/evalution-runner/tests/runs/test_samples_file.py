from __future__ import annotations

import math
import os
import sqlite3
from array import array
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalution.results import SampleResult, to_json
from evalution.sample_columns import INDEX, SampleIndex, collect_columns
from evalution.samples import parse_place
from evalution.samples_file import SamplesFile, SamplesReader


def line(suite: str, index: int, target: str) -> str:
    return to_json(SampleResult(suite, index, target=target).to_dict()) + "\n"


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.text(max_size=5)), max_size=20)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_finished_suite_lies_in_the_order_of_its_rows_with_the_last_word_of_each(
    tmp_path: Path, suites: list[list[tuple[int, str]]]
) -> None:
    file = SamplesFile(tmp_path / "samples.jsonl")
    expected = ""
    for number, samples in enumerate(suites):
        for index, target in samples:
            file.append(SampleResult(str(number), index, target=target))
        file.finish_suite()
        latest = dict(samples)
        expected += "".join(line(str(number), index, latest[index]) for index in sorted(latest))
    file.close()
    assert (tmp_path / "samples.jsonl").read_bytes().decode() == expected
    assert {path.name for path in tmp_path.iterdir()} <= {"samples.jsonl", INDEX}

    names = [str(number) for number, samples in enumerate(suites) if samples]
    indexed = SamplesReader(file.path)
    assert list(SampleIndex(file.path).list_suites()) == indexed.suites == names
    found = {name: (indexed.columns(name), list(indexed.of(name))) for name in names}
    SampleIndex(file.path).delete()
    scanned = SamplesReader(file.path)
    for name, (columns, samples) in found.items():
        assert samples == list(scanned.of(name))
        assert columns.offsets == array("q", [offset for _, offset in lines_of(file.path, name)])
        assert replace(columns, offsets=array("q")) == replace(
            scanned.columns(name), offsets=array("q")
        )


def lines_of(file: Path, suite: str) -> list[tuple[int, int]]:
    """Return rows and offsets of a suite's lines."""
    lines = file.read_bytes().splitlines(keepends=True)
    offsets = accumulate((len(line) for line in lines), initial=0)
    places = [(*parse_place(line), offset) for line, offset in zip(lines, offsets, strict=False)]
    return [(row, offset) for name, row, offset in places if name == suite]


def write_scores(path: Path) -> SamplesFile:
    file = SamplesFile(path / "samples.jsonl")
    for row in range(3):
        file.append(SampleResult("s", row, metrics={"acc": 1.0, "odd": math.inf}))
    file.finish_suite()
    file.close()
    return file


@pytest.mark.parametrize(
    ("damage", "is_used"),
    [
        (lambda samples, _: os.utime(samples, ns=(2**62, 2**62)), True),
        (lambda samples, _: edit(samples, b'"acc":1.0', b'"acc":0.0'), False),
        (lambda samples, _: edit(samples, b"\n", b" \n"), False),
        (lambda samples, _: samples.write_bytes(b""), False),
        (lambda _, index: index.write_bytes(b"not a database"), False),
        (lambda _, index: index.unlink(), False),
        (lambda _, index: spoil(index, "PRAGMA user_version = 7"), False),
        (lambda _, index: spoil(index, "DROP TABLE suites"), False),
        (lambda _, index: spoil(index, "CREATE VIEW more AS SELECT 1"), False),
        (lambda _, index: spoil(index, "PRAGMA user_version = 1"), False),
    ],
    ids=[
        "copied",
        "edited",
        "longer",
        "emptied",
        "no-database",
        "missing",
        "other-form",
        "no-table",
        "view",
        "older-form",
    ],
)
def test_index_counts_as_long_as_its_lines_stand(
    tmp_path: Path, damage: Callable[[Path, Path], object], is_used: bool
) -> None:
    file = write_scores(tmp_path).path
    damage(file, tmp_path / INDEX)
    os.utime(file, ns=(2**62, 2**62))
    assert bool(SampleIndex(file).list_suites()) is is_used
    values = [sample.metrics["acc"] for sample in SamplesReader(file).of("s")]
    assert list(SamplesReader(file).columns("s").metrics.get("acc", ())) == values


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE columns SET data = zeroblob(24) WHERE name = CAST('acc' AS BLOB)",
        "UPDATE columns SET data = zeroblob(8) WHERE name = 'offsets'",
        "UPDATE columns SET name = CAST('odds' AS BLOB) WHERE name = CAST('odd' AS BLOB)",
        "UPDATE columns SET data = 'text' WHERE name = 'rows'",
        "DELETE FROM columns WHERE name = CAST('odd' AS BLOB)",
        "UPDATE suites SET columns = NULL",
    ],
)
def test_columns_that_were_changed_are_read_from_the_lines(tmp_path: Path, change: str) -> None:
    file = write_scores(tmp_path).path
    expected = SamplesReader(file).columns("s").metrics
    with closing(sqlite3.connect(tmp_path / INDEX)) as connection, connection:
        assert connection.execute(change).rowcount == 1
    with pytest.raises(KeyError):
        SampleIndex(file).read("s")
    found = SamplesReader(file)
    assert found.columns("s").metrics == expected
    assert [sample.index for sample in found.of("s")] == [0, 1, 2]


def test_columns_of_different_lengths_are_read_from_the_lines(tmp_path: Path) -> None:
    file = SamplesFile(tmp_path / "samples.jsonl")
    file.append(SampleResult("s", 0))
    file.finish_suite()
    file.close()
    index = SampleIndex(file.path)
    columns = replace(collect_columns([SampleResult("s", 0)]), targets=array("q"))
    lines = index.list_suites()["s"]
    index.delete()
    index.write("s", lines, columns)
    with pytest.raises(KeyError):
        index.read("s")


def edit(file: Path, old: bytes, new: bytes) -> None:
    file.write_bytes(file.read_bytes().replace(old, new))


def spoil(index: Path, statement: str) -> None:
    with closing(sqlite3.connect(index)) as connection:
        connection.execute(statement)


def test_index_that_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    file = SamplesFile(tmp_path / "samples.jsonl")
    (tmp_path / INDEX).mkdir()
    file.append(SampleResult("s", 0))
    file.finish_suite()
    file.close()
    assert SamplesReader(file.path).suites == ["s"]


def test_draft_of_an_ordered_suite_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("precious")
    (tmp_path / "samples.part").symlink_to(tmp_path / "other")
    file = SamplesFile(tmp_path / "samples.jsonl")
    for index in (1, 0):
        file.append(SampleResult("s", index))
    file.finish_suite()
    file.close()
    assert (tmp_path / "other").read_text() == "precious"
    assert [sample.index for sample in SamplesReader(file.path).of("s")] == [0, 1]


def test_what_an_unfinished_suite_wrote_can_be_read(tmp_path: Path) -> None:
    file = SamplesFile(tmp_path / "samples.jsonl")
    for index in (3, 1, 3):
        file.append(SampleResult("s", index, target=str(index)))
    file.close()
    assert [sample.index for sample in SamplesReader(file.path).of("s")] == [1, 3]


def test_suite_that_was_cut_off_stays_out_of_the_next(tmp_path: Path) -> None:
    file = SamplesFile(tmp_path / "samples.jsonl")
    for suite, rows in (("cut", (3, 1)), ("whole", (1, 0)), ("cut", (1, 0))):
        for row in rows:
            file.append(SampleResult(suite, row, target=str(rows)))
        if suite == "whole":
            file.finish_suite()
    file.finish_suite()
    file.close()
    places = [parse_place(line) for line in file.path.read_bytes().splitlines(keepends=True)]
    again = [("cut", 0), ("cut", 1)]
    assert places == [("cut", 3), ("cut", 1), ("whole", 0), ("whole", 1), *again]
    found = SamplesReader(file.path)
    assert found.suites == ["cut", "whole"]
    assert [sample.index for sample in found.of("whole")] == [0, 1]
    assert [(one.index, one.target) for one in found.of("cut")] == [
        (0, "(1, 0)"),
        (1, "(1, 0)"),
        (3, "(3, 1)"),
    ]


def test_ordering_reads_each_line_and_not_a_buffer_for_each(tmp_path: Path) -> None:
    counters = Path("/proc/self/io")
    if not counters.exists():
        pytest.skip("this system has no /proc/self/io to measure how much was read")

    def bytes_read() -> int:
        return int(counters.read_text().split()[1])

    file, rows = SamplesFile(tmp_path / "samples.jsonl"), 2_000
    for row in range(rows):
        file.append(SampleResult("s", row * 7 % rows, target="word " * 400))
    before = bytes_read()
    file.finish_suite()
    read = bytes_read() - before
    file.close()
    size = file.path.stat().st_size
    lines = file.path.read_bytes().splitlines(keepends=True)
    assert [parse_place(line)[1] for line in lines] == list(range(rows))
    assert read < 20 * size


def test_closing_twice_is_no_error(tmp_path: Path) -> None:
    file = SamplesFile(tmp_path / "samples.jsonl")
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.append(SampleResult("s", 0))


@given(st.lists(st.text(st.sampled_from('aB"\\\n é'), max_size=6)), st.text('aAb"\\\n', min_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_text_is_found_in_every_line_that_has_it(
    tmp_path: Path, texts: list[str], needle: str
) -> None:
    file = SamplesFile(tmp_path / "samples.jsonl")
    file.append(SampleResult("other", 0, target=needle))
    file.finish_suite()
    for row, text in enumerate(texts):
        file.append(SampleResult("s", row, target=text))
    file.finish_suite()
    file.close()
    found = SamplesReader(file.path).of("s")
    if texts:
        rows = {*(found.find_texts([needle, "a"]) or ())}
        assert rows >= {
            row
            for row, text in enumerate(texts)
            if needle.lower() in text.lower() and "a" in text.lower()
        }
        assert rows <= set(range(len(texts)))
    assert found.find_texts(["a", "é"]) is None
