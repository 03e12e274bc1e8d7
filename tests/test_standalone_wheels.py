"""A wheel of each light member works in an environment that has nothing else of ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

pytestmark = pytest.mark.wide

PACKAGES = Path(__file__).parents[1] / "packages"


def is_installed(member: str) -> bool:
    try:
        distribution(member)
    except PackageNotFoundError:
        return False
    return True


MEMBERS = sorted(path.parent.name for path in PACKAGES.glob("*/pyproject.toml"))
LIGHT = [member for member in MEMBERS if is_installed(member)]

INSTALLED = """
import json
from importlib.metadata import distributions
print(json.dumps(sorted({found.name.lower().replace("_", "-") for found in distributions()})))
"""


def run(python: Path, code: str, *arguments: str) -> str:
    command = [python, "-I", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_core_brings_only_pydantic(
    empty_environment: Callable[..., Path], member_wheels: Path
) -> None:
    python = empty_environment("evalution-core", find_links=member_wheels)
    assert set(json.loads(run(python, INSTALLED))) == {
        "annotated-types",
        "evalution-core",
        "pydantic",
        "pydantic-core",
        "typing-extensions",
        "typing-inspection",
    }
    listed = run(python, "from evalution_core.discovery import available; print(available())")
    assert listed.strip() == "[]"


@pytest.mark.parametrize("member", [name for name in LIGHT if name != "evalution-core"])
def test_light_member_installs_alone_and_imports(
    member: str, empty_environment: Callable[..., Path], member_wheels: Path
) -> None:
    python = empty_environment(member, find_links=member_wheels)
    module = "evalution" if member == "evalution-runner" else member.replace("-", "_")
    shown = run(python, f"import {module}; print({module}.__file__){INSTALLED}")
    where, _, installed = shown.partition("\n")
    assert Path(where).is_relative_to(python.parents[1])
    assert not {"torch", "transformers"} & set(json.loads(installed))


def test_quickstart_runs_outside_a_clone(
    empty_environment: Callable[..., Path], member_wheels: Path, tmp_path: Path
) -> None:
    python = empty_environment("evalution-runner", "evalution-reference", find_links=member_wheels)
    command = [python.with_name("evalution"), "run", "builtin:tiny/quickstart", "--output", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    metrics = {suite["name"]: suite["metrics"] for suite in results["suites"]}
    # Sums have dozens of possible answers, choices four, and a byte of chance costs eight bits.
    assert metrics["sums"]["exact_match"]["value"] > 0.9
    assert metrics["choices"]["acc"]["value"] > 0.9
    assert metrics["prose"]["bits_per_byte"]["value"] < 0.5
