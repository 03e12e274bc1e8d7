"""README.md's first commands, typed in an environment that its install line makes of wheels."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[1]
INSTALLED = ["evalution-runner", "evalution-reference"]
BLOCK = re.compile(
    r"(not run: [^\n]*(?:downloads|of yours)[^\n]* -->\n)?"
    r"^```(\w+)(?: title=(\S+))?[^\n]*\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def read_commands(page: str, folder: Path) -> Iterator[list[str]]:
    """Yield the commands that follow the install line; files that blocks name are written."""
    for left_out, language, title, body in BLOCK.findall(
        page[page.index("pip install evalution-runner") :]
    ):
        if title and title != "output":
            (folder / title).write_text(body, encoding="utf-8")
        elif language == "console" and not left_out and "uv run" not in body:
            for line in re.findall(r"^\$ (evalution .*)$", body, re.MULTILINE):
                yield shlex.split(line)


def test_commands_work_after_the_install_line(
    empty_environment: Callable[..., Path], member_wheels: Path, tmp_path: Path
) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"pip install {' '.join(INSTALLED)}\n" in page
    python = empty_environment(*INSTALLED, find_links=member_wheels)
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    count = 0
    for command in read_commands(page, tmp_path):
        done = subprocess.run(
            [python.with_name(command[0]), *command[1:]],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "COLUMNS": "120"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        count += 1
    assert count
