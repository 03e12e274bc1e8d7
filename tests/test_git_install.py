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


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of a repository that holds this one's commit alone.

    pip clones for each package; with all of the history that takes most of its time.
    """
    folder = tmp_path_factory.mktemp("origin")

    def git(*words: str | Path) -> str:
        return subprocess.check_output(["git", *words], cwd=folder, text=True).strip()

    git("init", "--quiet", "--bare")
    git("fetch", "--quiet", "--depth", "1", ROOT, "HEAD")
    person = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    commit = git(*person, "commit-tree", "FETCH_HEAD^{tree}", "-m", "One commit")
    git("update-ref", "HEAD", commit)
    (folder / "shallow").unlink()
    # Older versions of pip refuse an address without a host.
    return f"git+file://localhost{folder}@{commit}"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no clone")
@pytest.mark.timeout(1200)  # packages come from the network, without uv's cache for pip
@pytest.mark.parametrize("command", COMMANDS, ids=["uv", "pip"])
def test_command_from_git_installs_what_runs(command: str, address: str, tmp_path: Path) -> None:
    words = shlex.split(command.replace(ADDRESS, address))
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
