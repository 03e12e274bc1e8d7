"""The two commands of docs/install.md that install from git work on this repository's commit."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[1]
ADDRESS = "git+https://github.com/evalution-project/evalution"
PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ ((?:uv )?pip install .*git\+.*)$", PAGE, re.MULTILINE)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no clone")
@pytest.mark.parametrize("command", COMMANDS, ids=["uv", "pip"])
def test_command_from_git_installs_what_runs(command: str, tmp_path: Path) -> None:
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    # Older versions of pip refuse an address without a host.
    words = shlex.split(command.replace(ADDRESS, f"git+file://localhost{ROOT}@{head}"))
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    programs = environment / "bin"
    if words[0] == "uv":
        words[3:3] = ["--python", str(programs / "python")]
    else:
        words[0] = str(programs / "pip")
    subprocess.run(words, cwd=tmp_path, check=True)
    quickstart = ["run", "builtin:tiny/quickstart", "--limit", "5", "--output", "out"]
    subprocess.run([programs / "evalution", *quickstart], cwd=tmp_path, check=True)
    assert (tmp_path / "out" / "results.json").is_file()
