"""The checks of the tree find the faults that they are for, and a new engine has none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import house
import words
from evalution_enginekit import new

TOOLS = Path(__file__).parents[1] / "tools"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package of five modules, with a circle for types alone and a small module."""
    package = tmp_path / "packages" / "acme" / "src" / "acme"
    package.mkdir(parents=True)
    sources = {
        "__init__": "",
        "roof": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import acme.ground\n",
        "ground": "def build() -> None:\n    from acme import roof\n",
        "user": "from acme.small import VALUE\n" + "x = 1\n" * 50,
        "small": "VALUE = 1\n",
        "long": "def long() -> None:\n" + "    pass\n" * 60,
    }
    for name, source in sources.items():
        (package / f"{name}.py").write_text(source, encoding="utf-8")
    return tmp_path


def test_circles_count_imports_for_types_and_in_functions(tree: Path) -> None:
    known = house.read_modules(tree)
    imports = {name: house.find_imports(module, known) for name, module in known.items()}
    assert house.find_circles(imports, known) == [["acme.ground", "acme.roof"]]


def test_small_module_with_one_importer_needs_a_reason(tree: Path) -> None:
    known = house.read_modules(tree)
    imports = {name: house.find_imports(module, known) for name, module in known.items()}
    found = list(house.find_small(known.values(), imports))
    assert "acme.small: 1 lines, only imported by acme.user" in found
    small = known["acme.small"].path
    small.write_text('"""One value, its own module because two formats share it."""\n\nVALUE = 1\n')
    known = house.read_modules(tree)
    assert not [line for line in house.find_small(known.values(), imports) if "small" in line]


def test_long_functions_are_listed(tree: Path) -> None:
    known = house.read_modules(tree)
    assert list(house.find_long_functions(known.values())) == ["acme.long.long: 61 lines"]


def test_comments_and_docstrings_are_no_code_lines() -> None:
    source = '"""Module."""\n\nimport os\n\n__all__ = [\n    "a",\n]\n\n\ndef a() -> str:\n'
    source += '    """Return it."""\n    # why\n    return """two\nlines"""\n'
    assert house.count_code_lines(source) == 3


@pytest.mark.parametrize(
    ("docstring", "is_fault"),
    [
        ("What a session holds.", True),
        ("Whether it is closed; a closed one refuses.", True),
        ("How\nmany there are.", True),
        ("Return what a session holds.", False),
        ("What is a session? One loaded model.", False),
        ("The caller is told.", True),
        ("Print it anew.", True),
    ],
)
def test_clauses_and_avoided_words_are_faults(
    tmp_path: Path, docstring: str, is_fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(f'def f() -> None:\n    """{docstring}"""\n', encoding="utf-8")
    assert bool(list(words.find_faults(path))) == is_fault


@pytest.mark.parametrize("name", ["zeta", "tensorrt-llm"])
def test_new_engine_passes_the_linter(name: str, tmp_path: Path) -> None:
    assert new.main([name, "--into", str(tmp_path)]) == 0
    configuration = ["--config", str(TOOLS.parent / "pyproject.toml"), "--no-cache"]
    for arguments in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *arguments, *configuration, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
