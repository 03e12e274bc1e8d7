"""The README's engine runs as written and prints what it says; the names it lists exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import evalution_enginekit

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


KIT = "evalution_enginekit."


def test_the_engine_runs_as_written(tmp_path: Path) -> None:
    ((source, told),) = re.findall(r"```python\n(.*?  # (.*?)\n)```", README, re.DOTALL)
    file = tmp_path / "parrot.py"
    file.write_text(source, "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", file], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (told, "")


def test_the_names_in_its_table_are_public() -> None:
    named = names_between("| to | use |", "| extra |")
    assert len(named) > 10
    assert named <= set(evalution_enginekit.__all__)


ROW = re.compile(r"^\| `([\w.]+)` \| (.+) \|$", re.MULTILINE)
REPOSITORY = Path(__file__).parents[3]


def read_surface() -> dict[str, set[str]]:
    """Return the public names of each module as the README has them."""
    begin = README.index("| module | names |")
    rows = ROW.findall(README[begin : README.index("\n\n", begin)])
    return {module: set(re.findall(r"`(\w+)`", names)) for module, names in rows}


def read_imports() -> dict[str, set[str]]:
    """Return the names that other packages and the tools import from each module of the kit."""
    found: dict[str, set[str]] = {}
    for file in (*REPOSITORY.glob("packages/*/src/**/*.py"), *REPOSITORY.glob("tools/**/*.py")):
        text = file.read_text("utf-8")
        if "evalution-enginekit" in file.parts or KIT not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(KIT):
                module = (node.module or "").removeprefix(KIT)
                found.setdefault(module, set()).update(alias.name for alias in node.names)
    return found


def test_names_that_other_packages_import_are_listed() -> None:
    surface, imported = read_surface(), read_imports()
    assert len(imported) > 10
    unlisted = {
        f"{module}.{name}"
        for module, names in imported.items()
        for name in names - surface.get(module, set())
    }
    assert sorted(unlisted) == []


def test_names_that_are_listed_exist() -> None:
    for module, names in read_surface().items():
        missing = [name for name in names if not hasattr(import_module(KIT + module), name)]
        assert (module, missing) == (module, [])


def names_between(begin: str, end: str) -> set[str]:
    text = README[README.index(begin) : README.index(end)]
    return set(re.findall(r"`(\w+)`", text))
