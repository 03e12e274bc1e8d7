"""Environments hold what they say: requirement files are hashed, and missing members fail a run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pin_changes

ROOT = Path(__file__).parents[1]

LIGHT = [
    ROOT / "packages" / f"evalution{name}" / "pyproject.toml"
    for name in ("-conformance", "-core", "-enginekit", "-reference", "-runner")
]
INPUTS = sorted((ROOT / "tools" / "envs").glob("*.in"))


def requirement_lines(path: Path) -> list[str]:
    """Return one line per requirement, its options included, comments left out."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize("source", INPUTS, ids=lambda path: path.stem)
def test_requirement_file_pins_and_hashes_everything(source: Path) -> None:
    pinned: dict[str, str] = {}
    for line in requirement_lines(source.with_suffix(".txt")):
        assert re.fullmatch(r"[a-z0-9.-]+==\S+( ; .*?)?( +--hash=sha256:[0-9a-f]{64})+", line), line
        requirement = Requirement(line.partition(" ")[0])
        pinned[requirement.name] = next(iter(requirement.specifier)).version
    for line in requirement_lines(source):
        wanted = Requirement(line)
        assert wanted.specifier.contains(pinned[canonicalize_name(wanted.name)]), line
    assert "torch" not in pinned
    assert not any(name.startswith("nvidia") for name in pinned)


@pytest.mark.parametrize("source", INPUTS, ids=lambda path: path.stem)
def test_requirement_file_has_what_the_light_members_need(source: Path) -> None:
    lines = requirement_lines(source.with_suffix(".txt"))
    pinned = {Requirement(line.partition(" ")[0]).name for line in lines}
    needed = {
        canonicalize_name(requirement.name)
        for member in LIGHT
        for text in tomllib.loads(member.read_text(encoding="utf-8"))["project"]["dependencies"]
        if not (requirement := Requirement(text)).name.startswith("evalution")
    }
    assert needed <= pinned, "run tools/envs/compile"


@pytest.mark.parametrize("source", INPUTS, ids=lambda path: path.stem)
def test_environment_is_described_in_the_readme(source: Path) -> None:
    table = (source.parent / "README.md").read_text(encoding="utf-8")
    assert f"| `{source.stem}` |" in table


OLD = """\
# written by tools/envs/compile
acme==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
gone==3 ; sys_platform == 'linux' \\
    --hash=sha256:cc
kept==5 \\
    --hash=sha256:dd
rehashed==7 \\
    --hash=sha256:ee
"""
NEW = """\
acme==1.1 \\
    --hash=sha256:ff
kept==5 \\
    --hash=sha256:dd
new-one==2 \\
    --hash=sha256:11
rehashed==7 \\
    --hash=sha256:ee \\
    --hash=sha256:22
"""
TABLE = """\
| package | old | new | environments |
|---|---|---|---|
| acme | 1.0 | 1.1 | first, second |
| gone | 3 | – | first, second |
| new-one | – | 2 | first, second |
| rehashed | 7 | the same, other archives | first, second |
"""
UV = """\
#!/bin/sh
if [ "$1" = run ]; then shift 2; exec "$PYTHON" "$@"; fi
while [ "$1" != --output-file ]; do shift; done
cat "$NEW" > "$2"
"""
"""Stands for uv: it runs a script, and compiles each file to the same."""


def test_refreshed_pins_are_shown_as_a_table(tmp_path: Path) -> None:
    envs = tmp_path / "tools" / "envs"
    envs.mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "envs" / "compile", envs)
    shutil.copy(ROOT / "tools" / "pin_changes.py", envs.parent)
    for name in ("first", "second"):
        (envs / f"{name}.in").touch()
        (envs / f"{name}.txt").write_text(OLD, encoding="utf-8")
    (tmp_path / "new").write_text(NEW, encoding="utf-8")
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(UV, encoding="utf-8")
    uv.chmod(0o755)
    path = f"{uv.parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "PYTHON": sys.executable, "NEW": str(tmp_path / "new")}
    command = [envs / "compile"]
    for expected in (TABLE, "No pin changed.\n"):
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout == expected


def test_all_pins_are_compared() -> None:
    for source in INPUTS:
        file = source.with_suffix(".txt")
        pins = pin_changes.read_pins(file)
        assert len(pins) == len(requirement_lines(file))
        assert sum(len(hashes) for _, hashes in pins.values()) == file.read_text().count("--hash=")


@pytest.fixture
def root_conftest(pytestconfig: pytest.Config) -> Any:
    return pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))


def test_required_member_that_is_missing_fails_the_run(
    root_conftest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALUTION_REQUIRE", "evalution-core evalution-acme pytest")
    with pytest.raises(pytest.UsageError, match=r"required, but not installed: evalution-acme$"):
        root_conftest.pytest_configure()


def test_required_members_that_are_there_pass(
    root_conftest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALUTION_REQUIRE", "evalution-core pytest")
    root_conftest.pytest_configure()
