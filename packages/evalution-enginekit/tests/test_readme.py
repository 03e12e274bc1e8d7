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
    table = README[README.index("| to | use |") : README.index("| extra |")]
    named = set(re.findall(r"`(\w+)`", table))
    assert len(named) > 10
    assert named <= set(evalution_enginekit.__all__)
