"""Options of commands: none is without effect, `-h` is `--help`, and tables of options."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from evalution.cli.listings import format_option, format_type, make_options_table

WITHOUT_EFFECT = [
    (["show", "out", "--limit", "3"], "choose samples; name --samples SUITE"),
    (["show", "out", "--failed"], "choose samples; name --samples SUITE"),
    (["show", "out", "--wrong"], "choose samples; name --samples SUITE"),
    (["run", "spec.yaml", "--fresh"], "--fresh is for a run folder that is there; name it with"),
    (["run", "spec.yaml", "--retry-failed"], "--retry-failed is for a run folder that is there"),
    (
        ["run", "spec.yaml", "--output", "out", "--fresh", "--retry-failed"],
        "--fresh starts over and --retry-failed goes on; take one",
    ),
    (["compare", "out", "out", "--json", "--flipped", "1"], "--json has every flipped row"),
]


def test_an_option_without_effect_is_refused(
    command_line: Any, assert_says: Any, spec: Any, folder: Path
) -> None:
    assert command_line("run", spec(folder), "--limit", "1", "--output", "out").returncode == 0
    before = sorted(path.name for path in folder.iterdir())
    for words, message in WITHOUT_EFFECT:
        done = command_line(*words)
        assert_says(done, 2, message)
        assert done.stdout == ""
    assert sorted(path.name for path in folder.iterdir()) == before


def test_samples_are_five_for_people_and_all_for_programs(
    command_line: Any, spec: Any, folder: Path
) -> None:
    assert command_line("run", spec(folder), "--limit", "7", "--output", "out").returncode == 0
    words = ("show", "out", "--samples", "rows")
    shown = command_line(*words).stdout
    assert shown.count("rows, row ") == 5
    assert shown.endswith("5 of 7 samples; --limit shows more\n")
    assert len(json.loads(command_line(*words, "--json").stdout)) == 7
    assert len(json.loads(command_line(*words, "--json", "--limit", "2").stdout)) == 2


@pytest.mark.parametrize("words", [[], ["run"], ["show"], ["engines"], ["serve"]])
def test_h_is_help(command_line: Any, words: list[str]) -> None:
    short, long = command_line(*words, "-h"), command_line(*words, "--help")
    assert short == long
    if words != ["serve"]:  # where its package is missing, what to install is told
        assert short.returncode == 0
        assert "-h, --help" in short.stdout


def test_usage_names_what_a_command_takes(command_line: Any) -> None:
    # Releases of typer differ in braces and dots.
    report, doctor = (command_line(verb, "-h").stdout for verb in ("report", "doctor"))
    assert re.search(r"evalution report \[OPTIONS\] \{?DIR\}?(\.\.\.)?\n", report)
    assert re.search(r"evalution doctor \[OPTIONS\] \[ENGINE\](\.\.\.)?\n", doctor)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (0, "0"),
        (0.5, "0.5"),
        ("\n", r"'\n'"),
        ([], "[]"),
        ([1, "a", False], "[1, 'a', false]"),
        ({"a": None, "b": [True]}, "{a: null, b: [true]}"),
    ],
)
def test_a_value_is_shown_as_a_spec_has_it(value: object, text: str) -> None:
    assert format_option(value) == text


NUMBER: dict[str, Any] = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("shape", "kind", "default"),
    [
        ({**NUMBER, "default": None}, "integer", "not set"),
        ({**NUMBER, "default": 3}, "integer or null", "3"),
        ({"type": "boolean", "default": False}, "boolean", "false"),
        ({"enum": ["auto", None], "default": "auto"}, "'auto' | null", "'auto'"),
        ({"$ref": "#/$defs/EngineSpec", "default": None}, "engine", "not set"),
        ({"type": "string", "default": "x", "writeOnly": True}, "string", "(secret)"),
    ],
)
def test_option_is_shown_as_a_spec_writes_it(
    shape: dict[str, Any], kind: str, default: str
) -> None:
    table = make_options_table("Engine", {"properties": {"option": {**shape, "description": "d"}}})
    assert [list(column.cells) for column in table.columns] == [
        *(["option"], [kind], [default], ["d"])
    ]


def test_a_needed_option_keeps_its_whole_type() -> None:
    table = make_options_table("Engine", {"properties": {"option": NUMBER}, "required": ["option"]})
    assert list(table.columns[1].cells) == [format_type(NUMBER)]
    assert list(table.columns[2].cells) == ["(needed)"]
