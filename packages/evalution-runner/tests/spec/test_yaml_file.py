from __future__ import annotations

from pathlib import Path

import pytest

from evalution.yaml_spec.yaml_file import read_yaml
from evalution_core import ConfigurationError

BOMB = "\n".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))
"""Each list holds the one before it twice: 2 to the 40th values in a kilobyte."""
LADDER = "\n".join(["a0: &a0 1", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 60))])
MERGES = "\n".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}], c{i}: 1}}" for i in range(1, 40))


def read(tmp_path: Path, text: str) -> object:
    path = tmp_path / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    return read_yaml(path)


def test_plain_values_come_through(tmp_path: Path) -> None:
    text = "a: [1, 2.5, 'x']\nb: &b {c: null}\nd: {<<: *b, e: true}\n"
    assert read(tmp_path, text) == {
        "a": [1, 2.5, "x"],
        "b": {"c": None},
        "d": {"c": None, "e": True},
    }


def test_escaped_character_of_json_is_one_character(tmp_path: Path) -> None:
    assert read(tmp_path, '{"a \\ud83d\\ude42": ["\\ud83d\\ude42", "\U0001f642"]}') == {
        "a \U0001f642": ["\U0001f642", "\U0001f642"]
    }


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ('a: "x \\ud83d y"\n', "line 1, column 4", "a lone surrogate is no valid text"),
        ("a: 1\nb: [1, 2\nc: 3\n", "line 3, column 2", "expected ',' or ']'"),
        ("a: 1\n\tb: 2\n", "line 2, column 1", "cannot start any token"),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1", "the key 'a' stands here a second time"),
        ("a: {b: 1, b: 2}\n", "line 1, column 11", "the key 'b' stands here a second time"),
        ("[a]: 1\n", "line 1, column 1", "a key must be a plain value"),
        ("a: !!set [b, {}]\n", "line 1, column 4", "a set must be a mapping of its members"),
        ("a: !!python/object:os.system x\n", "line 1, column 4", "could not determine"),
    ],
)
def test_yaml_error_names_line_and_column(
    tmp_path: Path, text: str, place: str, reason: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'spec.yaml'}, {place}: not valid YAML: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 60 + "]" * 60, "is nested too deeply, over 50 levels"),
        ("[" * 5000 + "]" * 5000, "is nested too deeply"),
        (LADDER, "is nested too deeply, over 50 levels"),
        ("a: " + "9" * 5000, "a number has over 400 characters"),
        ("a: " + ":".join(["59"] * 200), "a number has over 400 characters"),
        ("a: " + ":".join(["59"] * 134) + ".5", "a number has over 400 characters"),
        ("a0: &a0 [1, 2]\n" + BOMB, "line 16: aliases (*) and lists make more than 100000 values"),
        ("a0: &a0 {b: 1}\n" + MERGES, "line 15: aliases (*) and lists make more than 100000 val"),
        ("#" * (1 << 20) + "\n", "is larger than 1048576 bytes; rows stand in a file of their own"),
        ("a\x00", "isn't UTF-8 text"),
        ("a: 2026-13-41", "holds a value that can't be read: "),
        ("a: &a {b: *a}", "an alias (*) stands inside of what it names"),
        ("&a [1, *a]", "an alias (*) stands inside of what it names"),
    ],
)
def test_value_too_large_for_python_is_reported(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "spec.yaml"))
    assert reason in str(caught.value)


def test_alias_may_be_used_many_times(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1, 2]", *BOMB.splitlines()[:9]]
    found = read(tmp_path, "\n".join(lines))
    assert isinstance(found, dict)
    assert len(found) == 10  # pyright: ignore[reportUnknownArgumentType]


def test_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes("# é\nengine: ü\n".encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"line 1 isn't UTF-8 text; .* windows-1252: save"):
        read_yaml(path)


def test_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="can't be read: No such file"):
        read_yaml(tmp_path / "none.yaml")
