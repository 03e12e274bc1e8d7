"""The workflows name what there is: environments, stages and tools of this repository."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import members  # noqa: E402

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
