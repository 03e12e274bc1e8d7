"""`evalution report` on folders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="needs jinja2, of evalution-runner[report]")


@pytest.fixture
def run_folder(folder: Path, spec: Any, command_line: Any) -> Path:
    """A folder of a finished run, made by the command line in `folder`."""
    done = command_line("run", spec(folder), "--output", "done", "--limit", "3")
    assert done.returncode == 0, done.stderr
    return folder / "done"


def test_command_prints_path_and_size_of_the_page(run_folder: Path, command_line: Any) -> None:
    done = command_line("report", "done", "done", "--samples", "2")
    page = (run_folder.parent / "report.html").read_text(encoding="utf-8")

    assert done.returncode == 0
    assert done.stdout.startswith("report: report.html (")
    assert "my model on" in page
    assert ", 2 runs</h1>" in page
    assert '"counts":{' in page


@pytest.mark.parametrize("output", ["", "/"])
def test_output_that_names_no_file_is_reported(
    run_folder: Path, command_line: Any, assert_says: Any, output: str
) -> None:
    told = "names no file for the report; name an --output"
    assert_says(command_line("report", "done", "--output", output), 2, told)


def test_folder_of_a_parity_check_is_a_report_too(
    run_folder: Path, parity_folder: Path, command_line: Any
) -> None:
    assert command_line("report", str(parity_folder), "--output", "alone.html").returncode == 0
    (run_folder / "parity.json").write_bytes((parity_folder / "parity.json").read_bytes())
    assert command_line("report", "done", "--output", "both.html").returncode == 0
    alone = (run_folder.parent / "alone.html").read_text(encoding="utf-8")
    both = (run_folder.parent / "both.html").read_text(encoding="utf-8")

    assert "Outside the tolerance." in alone
    assert 'id="documents"' not in alone
    assert "Outside the tolerance." in both
    assert 'id="documents"' in both


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing"], "there is no run folder missing"),
        (["."], "is no run itself; name one of those in it (1 in all): "),
        (["rows.jsonl"], "rows.jsonl is no results.json of a run; name the folder of one"),
        (["done", "--output", "no/page.html"], "can't be written to no/page.html"),
    ],
)
def test_wrong_folders_are_reported(
    run_folder: Path, command_line: Any, assert_says: Any, arguments: list[str], message: str
) -> None:
    assert_says(command_line("report", *arguments), 2, message)


def test_missing_extra_is_reported(
    parity_folder: Path, command_line: Any, assert_says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)

    assert_says(
        command_line("report", str(parity_folder)), 2, "pip install 'evalution-runner[report]'"
    )
