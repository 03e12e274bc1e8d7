"""The commands of the README and of docs/benchmarking.md, run as written."""

from __future__ import annotations

import json
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


Program = Callable[..., subprocess.CompletedProcess[str]]


def run_command(page: Path, program: Program, folder: Path) -> None:
    """Run the one command of a page and compare its output with the page's."""
    ((command, shown),) = HERE.findall(page.read_text(encoding="utf-8"))
    script, *words = shlex.split(command)
    done = program(script, *words, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = " ".join(done.stdout.split())
    for part in shown.split("…"):
        assert " ".join(part.split()) in printed


def test_readme_shows_the_output_of_its_command(program: Program, tmp_path: Path) -> None:
    run_command(PACKAGE / "README.md", program, tmp_path)


def test_guide_shows_the_output_of_its_command_whose_folder_has_each_level(
    program: Program, tmp_path: Path
) -> None:
    run_command(PACKAGE.parents[1] / "docs" / "benchmarking.md", program, tmp_path)
    folder = tmp_path / "bench"
    found = json.loads((folder / "bench.json").read_text())
    assert [level["name"] for level in found["levels"]] == ["1 at once", "4 at once"]
    for level in found["levels"]:
        assert (level["successful"], level["errored"]) == (20, 0)
        assert (level["prompt_tokens"], level["output_tokens"]) == (20 * 32, 20 * 16)
        assert 0 < level["first_token_ms"]["p50"] <= level["latency_ms"]["p50"]
    theirs = json.loads((folder / "guidellm.json").read_text())
    assert len(theirs["benchmarks"]) == 2
    page = (folder / "report.html").read_text()
    assert "builtin:tiny" in page
    assert re.findall(r"(?:src|<link[^>]*href)=[\"']https?:", page) == []
