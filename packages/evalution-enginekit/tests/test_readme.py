"""The README's engine runs as written and prints what it says; the names it lists exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import evalution_enginekit

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


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


def test_the_modules_that_other_packages_import_are_listed() -> None:
    kit = Path(evalution_enginekit.__file__).parent
    listed = names_between("| module | for |", "The rule that turns") - {"Model", "Mock"}
    assert listed <= {module.stem for module in kit.iterdir()}
    imported = {
        name
        for file in (Path(__file__).parents[2]).glob("*/src/**/*.py")
        if "evalution-enginekit" not in file.parts
        for name in re.findall(
            r"from evalution_enginekit\.(\w+)[\w.]* import", file.read_text("utf-8")
        )
    }
    assert len(imported) > 10
    assert imported <= listed


def names_between(begin: str, end: str) -> set[str]:
    text = README[README.index(begin) : README.index(end)]
    return set(re.findall(r"`(\w+)`", text))
