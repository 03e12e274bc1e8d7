"""The commands of the README and of docs/benchmarking.md, run as written."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("guidellm", reason="guidellm isn't installed; see tools/envs")
pytestmark = pytest.mark.wide

PACKAGE = Path(__file__).parents[1]
HERE = re.compile(
    r"<!-- not run: [^>]*test_bench_pages.py[^>]* -->\n```console\n\$ (.*)\n([^`]*)```"
)


@pytest.mark.parametrize(
    "page",
    [PACKAGE / "README.md", PACKAGE.parents[1] / "docs" / "benchmarking.md"],
    ids=lambda page: page.name,
)
def test_page_shows_the_output_of_its_command(
    page: Path, program: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    found = HERE.findall(page.read_text(encoding="utf-8"))
    assert len(found) == 1
    for command, shown in found:
        script, *words = shlex.split(command)
        done = program(script, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        printed = " ".join(done.stdout.split())
        for part in shown.split("…"):
            assert " ".join(part.split()) in printed
