from __future__ import annotations

import csv
import io
import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalution.rows.local import ENDINGS, Row, Rows, rows_path
from evalution_core import ConfigurationError

json_values = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()


def columns_of(data: Any) -> list[dict[str, Any]]:
    return [dict(row.columns) for row in Rows(data)]


@given(
    rows=st.lists(
        st.dictionaries(st.text(min_size=1), json_values, max_size=3), min_size=1, max_size=4
    )
)
def test_jsonl_gives_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert columns_of(str(path)) == rows
    assert [row.index for row in Rows(str(path))] == list(range(len(rows)))


def test_lines_of_separators_alone_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('q,a\n1,2\n,\n"",""\n3,\n')
    assert columns_of(str(tmp_path / "rows.csv")) == [{"q": "1", "a": "2"}, {"q": "3", "a": ""}]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes of this kind")
def test_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(ConfigurationError, match="is a pipe, and rows are read more than once"):
        columns_of(str(tmp_path / "rows.jsonl"))


def test_blank_lines_and_a_byte_order_mark_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('\ufeff{"a": 1}\n\n  \n{"a": 2}\n', encoding="utf-8")
    assert columns_of(str(path)) == [{"a": 1}, {"a": 2}]


def test_parquet_rows_are_read_as_jsonl_rows_are(tmp_path: Path) -> None:
    rows = [{"q": f"question {i}", "choices": ["a", "b"], "gold": i} for i in range(600)]
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert columns_of(str(path)) == rows


def test_rows_in_memory_and_rows_of_a_package() -> None:
    assert columns_of([{"a": 1}]) == [{"a": 1}]
    first = next(iter(Rows("builtin:tiny/sums")))
    assert set(first.columns) == {"id", "question", "answer"}


def test_rows_can_be_read_again(write_rows: Any) -> None:
    rows = Rows(write_rows({"a": 1}, {"a": 2}))
    assert [row.columns["a"] for row in rows] == [row.columns["a"] for row in rows] == [1, 2]


def test_a_file_is_read_as_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\nno json\n', encoding="utf-8")
    rows = iter(Rows(str(path)))
    assert next(rows).columns == {"a": 1}
    with pytest.raises(ConfigurationError, match=r"rows\.jsonl, line 2, column 1: not JSON"):
        next(rows)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.jsonl", b'{"a": 1}\n[1]\n', "line 2: a row is a JSON object with columns, not [1]"),
        (
            "rows.jsonl",
            '{"q": "a"}\n{"q": "é"}\n'.encode("latin-1"),
            "rows.jsonl, line 2 isn't UTF-8 text; the file looks like windows-1252: save it as "
            "UTF-8, or convert it: iconv -f windows-1252 -t utf-8 rows.jsonl > utf8.jsonl",
        ),
        (
            "rows.csv",
            "q,a\n1,2\n".encode("utf-16"),
            "rows.csv, line 1 isn't UTF-8 text; the file looks ",
        ),
        (
            "rows.json",
            '[{"q": 1}]'.encode("utf-16-le"),
            "line 1 isn't UTF-8 text; the file looks like utf-16",
        ),
        ("rows.parquet", b"PAR1 nonsense", "can't be read as Parquet"),
        ("rows.docx", b"a,b\n", f"rows are read from {ENDINGS}, not '.docx'"),
        (
            "rows.json",
            b'{"q": "a"}',
            'a .json file is one list of rows, each an object with columns; got {"q"',
        ),
        ("rows.json", b'[{"q": "a"}, 3]', "each an object with columns; got 3"),
        (
            "rows.json",
            b'{"q": 1}\n{"q": 2}\n',
            "line 2, column 1: not JSON (Extra data); a .json file is one",
        ),
        (
            "rows.csv",
            b"q,q\n1,2\n",
            "line 1: the first line names the columns, each once, got ['q', 'q']",
        ),
        (
            "rows.csv",
            b"q,a\n1,2\n1,2,3\n",
            "line 3: there are 3 fields, and the header has 2 columns (q, a)",
        ),
        ("rows.csv", b'q,a\n"1\n2",3\n"1,2\n', "line 4: not a table (unexpected end of data)"),
        (
            "rows.jsonl",
            b'{"a": ' + b"9" * 5000 + b"}\n",
            "line 1: can't be read: Exceeds the",
        ),
        (
            "rows.jsonl",
            b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n",
            "line 1: can't be read: nested too deeply",
        ),
        (
            "rows.jsonl",
            b'{"q": "a"}\n{"q": "\\ud800"}\n',
            "line 2: column 'q' holds a lone surrogate, which is no valid text",
        ),
        ("rows.jsonl", b'{"q": [{"x": "\\udfff"}]}\n', "column 'q' holds a lone surrogate"),
        (
            "rows.jsonl",
            b'{"q": ' + b"[" * 102 + b"]" * 102 + b"}\n",
            "line 1: column 'q' is nested too deeply, over 100 levels",
        ),
        (
            "rows.csv",
            ",".join(map(str, range(10_001))).encode() + b"\n1" + b"," * 10_000,
            "line 2: there are 10001 columns, more than 10000; put those that belong together",
        ),
        ("rows", b"", f"rows are read from {ENDINGS}, not 'no ending'"),
    ],
)
def test_what_is_no_rows_file_is_named_with_the_place(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        list(Rows(str(path)))
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_line_that_never_ends_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("evalution.rows.local.LONGEST_LINE", 100)
    path = tmp_path / name
    path.write_text("q\n1\n" if name == "rows.csv" else '{"q": 1}\n')
    with path.open("a") as file:
        file.write("x" * 200)
    rows = iter(Rows(str(path)))
    assert next(rows)["q"] in (1, "1")
    with pytest.raises(ConfigurationError, match=r"line \d is longer than 100 bytes; a row is a"):
        next(rows)


def test_quote_that_nobody_closes_does_not_swallow_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalution.rows.local.LONGEST_LINE", 100)
    path = tmp_path / "rows.csv"
    path.write_text('q\n"1\n' + "word\n" * 50)
    with pytest.raises(ConfigurationError, match="field larger than field limit"):
        list(Rows(str(path)))


@pytest.mark.parametrize("name", ["rows.json", "rows.xlsx"])
def test_file_that_would_fill_the_memory_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pytest.importorskip("python_calamine", reason="needs the extra evalution-runner[excel]")
    monkeypatch.setattr("evalution.rows.local.LARGEST_WHOLE_FILE", 1000)
    path = tmp_path / name
    path.write_text(json.dumps([{"q": "x" * 1000}]))
    if name == "rows.xlsx":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("sheet1.xml", "x" * 10_000)
        assert path.stat().st_size < 1000
    with pytest.raises(ConfigurationError, match=r"is read as a whole up to 1000; make a \.jsonl"):
        list(Rows(str(path)))


def test_a_missing_file_names_the_nearest(write_rows: Any) -> None:
    path = Path(write_rows({"a": 1}, name="sums.jsonl"))
    with pytest.raises(ConfigurationError) as caught:
        rows_path(str(path.with_name("sum.jsonl")))
    assert "there is no file" in str(caught.value)
    assert "did you mean 'sums.jsonl'?" in str(caught.value)


def test_an_address_is_no_file() -> None:
    with pytest.raises(ConfigurationError) as caught:
        rows_path("https://x.y/rows.jsonl")
    assert str(caught.value) == (
        "https://x.y/rows.jsonl is an address, and rows are read from local files; download it and "
        "name the file, or name a data set of the Hub: hub:NAME:SPLIT"
    )


def test_a_name_that_is_not_alike_is_no_guess(write_rows: Any) -> None:
    path = Path(write_rows({"a": 1}, name="rows.jsonl"))
    with pytest.raises(ConfigurationError) as caught:
        rows_path(str(path.with_name("squad.jsonl")))
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/" + "r" * 300 + ".jsonl", "can't be read: File name too long"),
        ("~nobody-here/rows.jsonl", "there is no such home folder"),
    ],
)
def test_a_path_that_the_system_refuses_is_reported(path: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        rows_path(path)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 200


def test_rows_have_a_name_whatever_they_are() -> None:
    assert [Rows(data).name for data in (".", "", "a/b.jsonl", [], Path("c.jsonl"))] == [
        "rows",
        "rows",
        "b",
        "rows",
        "c",
    ]


def test_a_lone_surrogate_in_memory_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="row 1 of data: column 'q' holds a lone surrog"):
        list(Rows([{"q": "a"}, {"q": ("b", "\ud800")}]))


def test_a_folder_is_no_rows_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is a folder; name one"):
        rows_path(str(tmp_path))


def test_unknown_rows_of_a_package_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean 'rows/sums'\?"):
        rows_path("builtin:tiny/sum")


def test_floats_of_32_bits_are_the_decimals_that_they_are_written_as(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    values = [0.1, -2.5e-8, 3.4e38, 7.0, None, float("inf")]
    parquet.write_table(pyarrow.table({"a": pyarrow.array(values, pyarrow.float32())}), path)
    assert [row["a"] for row in columns_of(str(path))] == values


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.parquet"
    path.touch()
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'evalution-runner\[parquet\]'"):
        list(Rows(str(path)))


def test_a_missing_column_names_the_row_and_the_nearest() -> None:
    row = Row(3, "rows.jsonl, line 4", {"question": "x", "answer": "y"})
    with pytest.raises(ConfigurationError) as caught:
        row["quesion"]
    assert str(caught.value) == (
        "rows.jsonl, line 4: there is no column 'quesion'; did you mean 'question'? "
        "(columns: question, answer)"
    )


def test_an_unreadable_file_is_an_error_of_configuration(
    write_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_rows({"a": 1})
    refusing = Path.open

    def refuse(self: Path, *args: Any, **options: Any) -> Any:
        if str(self) == path:
            raise PermissionError(13, "Permission denied")
        return refusing(self, *args, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigurationError, match="can't be read: Permission denied"):
        list(Rows(path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.csv", 'q,a\r\n"1, ""2""\r\n",é\r\n\r\n3,\r\n'),
        ("rows.csv", 'q;a\n"1, ""2""\r\n";é\n3;\n'),
        ("rows.CSV", '\ufeffq\ta\n"1, ""2""\r\n"\té\n3\t\n'),
        ("rows.tsv", 'q\ta\n"1, ""2""\r\n"\té\n3\t\n'),
        ("rows.json", json.dumps([{"q": '1, "2"\r\n', "a": "é"}, {"q": "3", "a": ""}], indent=1)),
    ],
)
def test_tables_and_lists_of_rows_are_read_as_texts(
    tmp_path: Path, name: str, content: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode())
    rows = list(Rows(str(path)))
    assert [row.columns for row in rows] == [{"q": '1, "2"\r\n', "a": "é"}, {"q": "3", "a": ""}]
    assert [row.index for row in rows] == [0, 1]


cells = st.text(st.characters(exclude_characters="\0", codec="utf-8"))


@settings(max_examples=30)
@given(rows=st.lists(st.tuples(cells, cells), min_size=1))
def test_table_that_python_wrote_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows([("q", "a"), *rows])
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    path.write_text(written.getvalue(), encoding="utf-8", newline="")
    assert [tuple(row.values()) for row in columns_of(str(path))] == [r for r in rows if any(r)]
