"""The workflows name what there is: environments, stages and tools of this repository."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import members

ROOT = Path(__file__).parents[1]

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPT = re.compile(r"(?:^|\s)((?:tools/|\.ci/)\S+)")


def read_jobs(name: str) -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")
    return yaml.safe_load(text)["jobs"]


def test_every_environment_has_a_job() -> None:
    listed = read_jobs("ci.yml")["environments"]["strategy"]["matrix"]["environment"]
    assert listed == sorted(members.read_environments())


def test_the_weekly_run_uses_environments_with_pins() -> None:
    for name in read_jobs("weekly.yml")["newest"]["strategy"]["matrix"]["environment"]:
        assert members.read_environments()[name].requirements.is_file()


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_runs_scripts_of_the_repository_under_limits(workflow: Path) -> None:
    for job in read_jobs(workflow.name).values():
        assert job["timeout-minutes"] <= 90
        for step in job["steps"]:
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step.get("uses", "a/b@" + "0" * 40))
            for script in SCRIPT.findall(step.get("run", "")):
                assert (ROOT / script).exists(), script


COMPILE = """\
#!/bin/sh
echo "acme==1.1" > tools/envs/acme.txt
echo "| acme | 1.0 | 1.1 | acme |"
"""
GH = """\
#!/bin/sh
echo "$@" >> gh-calls
case "$*" in *--body-file*) while [ "$1" != --body-file ]; do shift; done; cat "$2" > gh-body;; esac
case "$*" in "pr list "*) printf '%s' "$OPEN";; esac
"""
"""Stands for GitHub's program: it notes how it is called, and the text of the pull request."""


@pytest.mark.parametrize(("opened", "verb"), [("", "create --head newest-pins"), ("7", "edit 7")])
def test_the_weekly_pull_request_shows_what_changed(opened: str, verb: str, tmp_path: Path) -> None:
    files = {"clone/tools/envs/compile": COMPILE, "bin/gh": GH}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    clone = tmp_path / "clone"
    (clone / "tools" / "envs" / "acme.txt").write_text("acme==1.0\n", encoding="utf-8")
    author = "-c user.name=a -c user.email=a@b.c"
    variables = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path),
        "TESTS": "failure",
        "OPEN": opened,
    }
    prepare = f"""
        git init --quiet --bare ../origin && git init --quiet && git add .
        git {author} commit --quiet -m first && git remote add origin ../origin
    """
    job = read_jobs("weekly.yml")["propose"]
    assert set(job["env"]) == {"GH_TOKEN", "TESTS"}
    steps = [step["run"] for step in job["steps"] if "run" in step and "pip" not in step["run"]]
    for script in (prepare, *steps):
        command = ["bash", "-eo", "pipefail", "-c", script]
        subprocess.run(command, cwd=clone, env=variables, check=True)
    pushed = ["git", "show", "newest-pins:tools/envs/acme.txt"]
    assert subprocess.check_output(pushed, cwd=tmp_path / "origin", text=True) == "acme==1.1\n"
    body = (clone / "gh-body").read_text(encoding="utf-8")
    assert body.startswith("| acme | 1.0 | 1.1 | acme |\n\nThe tests with the newest versions")
    assert "week: failure." in body
    assert f"pr {verb}" in (clone / "gh-calls").read_text(encoding="utf-8")
