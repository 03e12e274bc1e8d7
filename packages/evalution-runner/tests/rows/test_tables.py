"""Rows of Parquet files and workbooks."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet as parquet
import pytest

from evalution.rows import tables
from evalution.rows.local import Rows
from evalution_core import ConfigurationError

posix = pytest.mark.skipif(os.name != "posix", reason="sessions of processes are of POSIX")


def columns_of(data: Any) -> list[dict[str, Any]]:
    return [dict(row.columns) for row in Rows(data)]


def write_texts(path: Path, texts: list[str], *, as_dictionary: bool) -> str:
    """Write a column of texts; a dictionary makes a few bytes of equal ones."""
    column = pyarrow.array(texts)
    table = pyarrow.table({"q": column.dictionary_encode() if as_dictionary else column})
    parquet.write_table(table, path)
    return str(path)


@pytest.mark.parametrize("as_dictionary", [False, True])
def test_row_of_parquet_over_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_dictionary: bool
) -> None:
    monkeypatch.setattr("evalution.rows.local.LONGEST_LINE", 100)
    texts = [f"text {number}" for number in range(20)]
    path = write_texts(
        tmp_path / "rows.parquet", [*texts, "x" * 201, "y"], as_dictionary=as_dictionary
    )
    found: list[str] = []
    with pytest.raises(ConfigurationError) as caught:
        found += (row.text("q") for row in Rows(path))
    assert found == texts
    size = 201 if as_dictionary else 205
    assert str(caught.value) == (
        f"{path} can't be read as Parquet: row 20 holds {size} bytes, and a row may hold 100; "
        "leave out columns that aren't needed"
    )


def test_rows_of_parquet_are_not_unpacked_many_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_texts(tmp_path / "rows.parquet", ["x" * 1000] * 256, as_dictionary=False)
    monkeypatch.setattr("evalution.rows.local.LONGEST_LINE", 2000)
    pool = pyarrow.default_memory_pool()
    before = pool.bytes_allocated()
    rows = iter(Rows(path))
    next(rows)
    assert pool.bytes_allocated() - before < 100_000
    assert len(list(rows)) == 255


NESTED = {
    "nulls": pyarrow.array([[None] * 3] * 40, pyarrow.list_(pyarrow.null())),
    "flags": pyarrow.array([[True] * 3] * 40),
    "structs": pyarrow.array([[{"n": None}] * 3] * 40),
    "fixed": pyarrow.array([[1, 2, 3]] * 40, pyarrow.list_(pyarrow.int8(), 3)),
    "map": pyarrow.array([[("a", 1), ("b", None)]] * 40, pyarrow.map_("string", "int8")),
    "gaps": pyarrow.array([None, [1, None], []] * 10),
}


@pytest.mark.parametrize("name", NESTED)
def test_nested_values_of_parquet_are_read_as_they_are(tmp_path: Path, name: str) -> None:
    parquet.write_table(pyarrow.table({"q": NESTED[name]}), tmp_path / "rows.parquet")
    found = columns_of(str(tmp_path / "rows.parquet"))
    assert [row["q"] for row in found] == NESTED[name].to_pylist()


def write_counts(path: Path, counts: list[int], kind: str) -> str:
    """Write lists of so many values that take next to no bytes."""
    value = {"null": None, "flag": True, "struct": {"n": None}}[kind]
    types = {"null": pyarrow.null(), "flag": pyarrow.bool_()}
    member = types.get(kind) or pyarrow.struct([("n", pyarrow.null())])
    column = pyarrow.array([[value] * count for count in counts], pyarrow.list_(member))
    parquet.write_table(pyarrow.table({"q": column}), path)
    return str(path)


@pytest.mark.parametrize("kind", ["null", "flag", "struct"])
@pytest.mark.parametrize(
    ("counts", "row"),
    [
        ([5_000], "row 0"),
        ([999] * 3, "row 0"),
        ([1, *[0] * 30, 990, 3], "row 31"),
    ],
)
def test_row_of_parquet_with_too_many_values_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, counts: list[int], row: str
) -> None:
    path = write_counts(tmp_path / "rows.parquet", counts, kind)
    monkeypatch.setattr("evalution.rows.tables.MOST_VALUES", 990)
    with pytest.raises(ConfigurationError) as caught:
        columns_of(path)
    assert str(caught.value) == (
        f"{path} can't be read as Parquet: {row} holds more than 990 values in its lists; leave "
        "out columns that aren't needed"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process isn't bounded here")
def test_parquet_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = pyarrow.array(numpy.zeros(40_000_000, "int64"))
    column = pyarrow.ListArray.from_arrays([0, len(values)], values)
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"q": column}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    # pyarrow and its threads take 300 to 450 MiB of addresses before it reads.
    monkeypatch.setattr("evalution.rows.tables.MOST_MEMORY", 700 << 20)
    with pytest.raises(ConfigurationError) as caught:
        columns_of(str(path))
    assert str(caught.value) == (
        f"{path} can't be read as Parquet: it is damaged, or takes more than 734003200 bytes of "
        "memory, as a text that many rows share does; write it again, with smaller rows"
    )


def write_numbers(folder: Path, count: int) -> list[str]:
    """Write files of a row each, whose number is the file's."""
    paths = [str(folder / f"rows{number}.parquet") for number in range(count)]
    for number, path in enumerate(paths):
        parquet.write_table(pyarrow.table({"q": [number]}), path)
    return paths


class Recorded(subprocess.Popen[Any]):
    """A process whose session is known."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.session = os.getsid(self.pid) if os.name == "posix" else None


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """The processes that were started since; before, none is kept."""
    found: list[Recorded] = []

    class Listed(Recorded):
        def __init__(self, *arguments: Any, **options: Any):
            super().__init__(*arguments, **options)
            found.append(self)

    tables._TRIALS.close()
    monkeypatch.setattr("evalution.rows.tables.subprocess.Popen", Listed)
    return found


def test_parquet_files_are_tried_by_one_process(tmp_path: Path, started: list[Recorded]) -> None:
    paths = write_numbers(tmp_path, 20)
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(columns_of, paths), columns_of(paths[0])]
    assert found == [[{"q": number}] for number in [*range(20), 0]]
    assert len(started) == 1


def test_damaged_parquet_is_tried_alone_before_it_is_refused(
    tmp_path: Path, started: list[Recorded]
) -> None:
    *paths, damaged = write_numbers(tmp_path, 3)
    Path(damaged).write_bytes(b"PAR1 no PAR1")
    for count, path in ((1, damaged), (1, paths[0]), (2, damaged), (2, paths[1])):
        if path in paths:
            assert columns_of(path) == [{"q": paths.index(path)}]
        else:
            with pytest.raises(
                ConfigurationError, match=r"2\.parquet can't be read as Parquet: \w"
            ):
                columns_of(path)
        assert len(started) == count


def test_reader_of_parquet_that_ended_is_started_again(
    tmp_path: Path, started: list[Recorded]
) -> None:
    paths = write_numbers(tmp_path, 2)
    columns_of(paths[0])
    started[0].kill()
    started[0].wait()
    assert columns_of(paths[1]) == [{"q": 1}]
    assert len(started) == 2


def test_reader_of_parquet_that_was_not_awaited_is_ended(
    tmp_path: Path, started: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    paths = write_numbers(tmp_path, 2)
    columns_of(paths[0])
    monkeypatch.setattr("evalution.rows.tables.json.loads", lambda _: interrupt())
    with pytest.raises(KeyboardInterrupt):
        columns_of(paths[1])
    assert started[0].returncode is not None
    monkeypatch.undo()
    assert columns_of(paths[1]) == [{"q": 1}]


def test_parquet_is_found_from_another_working_folder(
    tmp_path: Path, started: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_texts(tmp_path / name / f"{name}.parquet", [name], as_dictionary=False)
        monkeypatch.chdir(tmp_path / name)
        assert [*tables.read_parquet(Path(f"{name}.parquet"), 100)] == [{"q": name}]
    assert len(started) == 1


@posix
def test_ctrl_c_does_not_reach_a_reader(tmp_path: Path, started: list[Recorded]) -> None:
    columns_of(write_texts(tmp_path / "rows.parquet", ["1"], as_dictionary=False))
    columns_of(write_workbook(tmp_path / "rows.xlsx", A=[["q"], ["1"]]))
    assert [process.session == process.pid for process in started] == [True, True]


_FORK = """
import os, sys
from evalution.rows import tables
from evalution.rows.local import Rows
def read(path):
    return [row.columns["q"] for row in Rows(path)], tables._TRIALS._process
(first, before) = read(sys.argv[1])
if (child := os.fork()) == 0:
    found, process = read(sys.argv[2])
    sys.exit(0 if found == [1] and process.pid != before.pid else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (read(sys.argv[3]), before.returncode) == (([2], before), None)
"""


@posix
def test_reader_of_parquet_is_left_to_the_process_that_started_it(tmp_path: Path) -> None:
    # Threads of pyarrow at a fork are warned of, and end in it.
    options = ["-W", "error", "-W", "ignore::DeprecationWarning"]
    done = subprocess.run(
        [sys.executable, *options, "-c", _FORK, *write_numbers(tmp_path, 3)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


_WAIT = """
import sys
from evalution.rows import tables
from evalution.rows.local import Rows
list(Rows(sys.argv[1]))
print(tables._TRIALS._process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no other's child is awaited here")
def test_reader_of_parquet_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    (path,) = write_numbers(tmp_path, 1)
    with subprocess.Popen(
        [sys.executable, "-c", _WAIT, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        reader = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
    try:
        assert select.select([reader], [], [], 60)[0] == [reader]
    finally:
        os.close(reader)


def test_columns_of_parquet_with_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pyarrow.table([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["q", "q"])
    parquet.write_table(table, path)
    with pytest.raises(
        ConfigurationError, match=r"need a name each of their own, got \['q', 'q'\]"
    ):
        columns_of(str(path))


def write_workbook(path: Path, far: str = "", **sheets: list[list[object]]) -> str:
    """Write a workbook as Excel does, as far as a reader needs it; with a cell at `far` too."""

    def cell(value: object) -> str:
        if isinstance(value, str):
            return f'<c t="inlineStr"><is><t xml:space="preserve">{value}</t></is></c>'
        is_flag = isinstance(value, bool)
        return f'<c t="{"b" if is_flag else "n"}"><v>{int(value) if is_flag else value}</v></c>'

    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    kinds = "http://schemas.openxmlformats.org/package/2006/relationships"
    listed = "".join(
        f'<sheet name="{name}" sheetId="{number}" r:id="r{number}"/>'
        for number, name in enumerate(sheets, start=1)
    )
    linked = "".join(
        f'<Relationship Id="r{n}" Type="{office}/worksheet" Target="worksheets/sheet{n}.xml"/>'
        for n in range(1, len(sheets) + 1)
    )
    with zipfile.ZipFile(path, "w") as book:
        book.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{kinds}"><Relationship Id="r" Type="{office}/officeDocument" '
            'Target="xl/workbook.xml"/></Relationships>',
        )
        book.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets>{listed}</sheets></workbook>',
        )
        book.writestr(
            "xl/_rels/workbook.xml.rels", f'<Relationships xmlns="{kinds}">{linked}</Relationships>'
        )
        for number, lines in enumerate(sheets.values(), start=1):
            shown = "".join(f"<row>{''.join(map(cell, line))}</row>" for line in lines)
            shown += far and f'<row><c r="{far}"><v>1</v></c></row>'
            book.writestr(
                f"xl/worksheets/sheet{number}.xml",
                f'<worksheet xmlns="{main}"><sheetData>{shown}</sheetData></worksheet>',
            )
    return str(path)


def test_a_sheet_is_read_with_whole_numbers_and_texts_as_they_are(tmp_path: Path) -> None:
    lines: list[list[object]] = [["", ""], ["Frage", "answer", ""], ["3 + 4 = ä?", 7], [" x ", 0.5]]
    path = write_workbook(
        tmp_path / "rows.xlsx", Tabelle1=[*lines, ["", ""], ["z", True]], empty=[]
    )
    assert columns_of(path) == [
        {"Frage": "3 + 4 = ä?", "answer": 7},
        {"Frage": " x ", "answer": 0.5},
        {"Frage": "z", "answer": True},
    ]
    assert [row.place for row in Rows(path)][-1] == f"{path}, line 6"
    assert next(iter(Rows(path))).text("answer") == "7"


@pytest.mark.parametrize(
    ("sheets", "message"),
    [
        ({"A": [["q"], ["1"]], "B": [["q"], ["2"]]}, r"2 sheets with rows \(A, B\); save the one"),
        ({"A": [["q"], ["1", "2"]]}, r"line 2: there is a value in a column .* \(columns: q\)"),
        ({"A": [["q", "q"], [1, 2]]}, "line 1: the first line names the columns, each once"),
    ],
)
def test_a_sheet_that_is_no_table_is_refused(tmp_path: Path, sheets: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        columns_of(write_workbook(tmp_path / "rows.xlsx", **sheets))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems bound no process's memory")
def test_a_cell_far_out_is_refused_and_ends_no_process(tmp_path: Path) -> None:
    path = write_workbook(tmp_path / "rows.xlsx", "XFD1048576", A=[["q"], ["1"]])
    with pytest.raises(ConfigurationError) as caught:
        columns_of(path)
    assert str(caught.value) == (
        f"{path} can't be read as a workbook: it is damaged, or takes more than 4294967296 bytes "
        "of memory, as a cell far from the others does; save it again, or as a CSV file"
    )


def test_a_line_that_ends_early_has_empty_cells(tmp_path: Path) -> None:
    lines: list[list[object]] = [["q", "a"], ["1"], ["", ""], ["2", ""]]
    path = write_workbook(tmp_path / "rows.xlsx", A=lines, B=[["", ""]])
    assert columns_of(path) == [{"q": "1", "a": ""}, {"q": "2", "a": ""}]
    assert [row.place for row in Rows(path)] == [f"{path}, line 2", f"{path}, line 4"]


def test_module_of_the_working_folder_does_not_run_with_a_workbook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("open('ran', 'w')")
    assert columns_of(write_workbook(tmp_path / "rows.xlsx", A=[["q"], ["1"]])) == [{"q": "1"}]
    assert not (tmp_path / "ran").exists()


def test_a_broken_workbook_and_a_missing_reader_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.xlsx"
    path.write_text("a,b", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"rows\.xlsx can't be read as a workbook: "):
        columns_of(str(path))
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'evalution-runner\[excel\]'"):
        columns_of(str(path))


@pytest.mark.parametrize(
    ("at", "damage", "problem"),
    [
        (6, b"\x63", "zip file version 9.9"),
        (46, b"\xff", "'utf-8' codec can't decode"),
    ],
)
def test_a_workbook_with_a_damaged_directory_is_refused(
    tmp_path: Path, at: int, damage: bytes, problem: str
) -> None:
    pytest.importorskip("python_calamine", reason="needs the extra evalution-runner[excel]")
    path = Path(write_workbook(tmp_path / "rows.xlsx", A=[["q"], ["1"]]))
    content = bytearray(path.read_bytes())
    at += content.index(b"PK\1\2")
    content[at : at + len(damage)] = damage
    content[content.index(b"PK\1\2") + 9] = 8  # its name is UTF-8
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        columns_of(str(path))
    assert str(caught.value).startswith(f"{path} can't be read as a workbook: {problem}")
    assert str(caught.value).endswith("; save it again, or as a CSV file")


def test_a_workbook_that_becomes_too_much_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line: list[object] = ["ä" * 500]
    path = write_workbook(tmp_path / "rows.xlsx", A=[["q"], *[line] * 10])
    monkeypatch.setattr("evalution.rows.tables.check_size", lambda *_: None)
    monkeypatch.setattr("evalution.rows.local.LARGEST_WHOLE_FILE", 5_200)
    assert len(columns_of(path)) == 10
    monkeypatch.setattr("evalution.rows.local.LARGEST_WHOLE_FILE", 5_000)
    message = r"its cells hold too much text; make a \.jsonl file of it"
    with pytest.raises(ConfigurationError, match=message):
        columns_of(path)
