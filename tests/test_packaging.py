"""What must hold for every member's packaging, found in `packages/` and named nowhere here."""

from __future__ import annotations

import ast
import email
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGES = ROOT / "packages"
MEMBERS = sorted(path.parent.name for path in PACKAGES.glob("*/pyproject.toml"))
# Members that nothing has to find; every other one registers itself, or says that it can't yet.
FRAME = {"evalution-runner", "evalution-conformance", "evalution-core", "evalution-enginekit"}
UNPUBLISHABLE = "Private :: Do Not Upload"

each_member = pytest.mark.parametrize("member", MEMBERS)


def read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def project(member: str) -> dict[str, Any]:
    return read(PACKAGES / member / "pyproject.toml")["project"]


def requirements(table: dict[str, Any]) -> list[Requirement]:
    """Return the dependencies of a project and of all its extras."""
    lists = [table["dependencies"], *table.get("optional-dependencies", {}).values()]
    return [Requirement(raw) for listed in lists for raw in listed]


def entry_points(member: str) -> dict[str, str]:
    groups = project(member).get("entry-points", {})
    found = {
        f"{group}: {name}": to for group, names in groups.items() for name, to in names.items()
    }
    return {**found, **project(member).get("scripts", {})}


def source(member: str) -> Path:
    return next((PACKAGES / member / "src").glob("*/__init__.py")).parent


@each_member
def test_member_has_metadata_for_an_index_and_a_type_marker(member: str) -> None:
    table = project(member)
    assert table["name"] == member
    assert table["license"] == "Apache-2.0"
    assert table["requires-python"] == ">=3.11"
    assert table["readme"] == "README.md"
    assert (PACKAGES / member / "README.md").read_text(encoding="utf-8").startswith(f"# {member}\n")
    assert table["version"] in (PACKAGES / member / "CHANGELOG.md").read_text(encoding="utf-8")
    assert (source(member) / "py.typed").is_file()
    assert (PACKAGES / member / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    address = read(ROOT / "pyproject.toml")["tool"]["evalution"]["release"]["repository"]
    assert table["urls"] == {
        "Source": address,
        "Documentation": f"{address}/tree/main/docs",
        "Changelog": f"{address}/blob/main/packages/{member}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }


@each_member
def test_links_of_a_readme_work_on_an_index(member: str) -> None:
    page = (PACKAGES / member / "README.md").read_text(encoding="utf-8")
    address = read(ROOT / "pyproject.toml")["tool"]["evalution"]["release"]["repository"]
    for link in re.findall(r"\]\(([^)\s]+)\)", page):
        assert link.startswith(("https://", "http://", "#")), link
        if link.startswith(f"{address}/blob/main/"):
            path = link.removeprefix(f"{address}/blob/main/").partition("#")[0]
            assert (ROOT / path).exists(), link


@each_member
def test_ranges_between_members_are_compatible_and_admit_the_versions_here(member: str) -> None:
    # uv takes the workspace's own member whatever the range says; pip does not.
    for requirement in requirements(project(member)):
        if requirement.name in MEMBERS:
            operators = {part.operator for part in requirement.specifier}
            assert operators == {">=", "<"}, str(requirement)
            version = project(requirement.name)["version"]
            assert requirement.specifier.contains(version, prereleases=True), str(requirement)


@each_member
def test_extras_of_members_exist(member: str) -> None:
    for requirement in requirements(project(member)):
        if requirement.name in MEMBERS:
            offered = project(requirement.name).get("optional-dependencies", {})
            assert requirement.extras <= offered.keys(), str(requirement)


def test_texts_name_members_and_extras_that_exist() -> None:
    listed = ["git", "ls-files", "*.md", "packages/*/src/*.py", "docs/*.py", ":!docs/decisions"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    for file in files.stdout.split():
        text = (ROOT / file).read_text(encoding="utf-8")
        named = re.findall(r"(?:--package |pip install '?)(evalution[\w-]*)(?:\[([\w,]+)\])?", text)
        named += re.findall(r"\b(evalution[\w-]*)\[([a-z,]+)\]", text)
        for member, extras in set(named) - {("evalution-acme", "")}:
            assert member in MEMBERS, f"{file} names {member}"
            offered = project(member).get("optional-dependencies", {})
            assert set(filter(None, extras.split(","))) <= offered.keys(), f"{file}: {extras}"


@each_member
def test_members_are_taken_from_the_workspace(member: str) -> None:
    sources = (
        read(PACKAGES / member / "pyproject.toml").get("tool", {}).get("uv", {}).get("sources", {})
    )
    own = {item.name for item in requirements(project(member)) if item.name in MEMBERS}
    assert sources == {name: {"workspace": True} for name in own}


@each_member
def test_member_registers_itself_or_says_that_it_is_not_usable(member: str) -> None:
    registered = entry_points(member)
    if UNPUBLISHABLE in project(member).get("classifiers", []):
        assert not registered
        assert "Not usable yet" in (PACKAGES / member / "README.md").read_text(encoding="utf-8")
    elif member not in FRAME:
        assert registered
        if (source(member) / "engine.py").is_file():
            assert any(name.startswith("evalution.engines: ") for name in registered)


@each_member
def test_entry_points_resolve(member: str) -> None:
    for name, target in entry_points(member).items():
        module, _, attribute = target.partition(":")
        path = PACKAGES / member / "src" / Path(*module.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        assert file.is_file(), f"{name} = {target}"
        defined = names(ast.parse(file.read_text(encoding="utf-8")))
        assert not attribute or attribute in defined, f"{name} = {target}"
        if name.startswith("evalution.engines: "):
            assert name == f"evalution.engines: {attribute}"


def names(module: ast.Module) -> set[str]:
    """Return what a module defines, assigns or imports at its top level."""
    found: set[str] = set()
    for node in module.body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                found.add(node.name)
            case ast.Assign():
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Import() | ast.ImportFrom():
                found |= {alias.asname or alias.name for alias in node.names}
            case _:
                pass
    return found


def test_no_member_depends_on_a_conflicting_one() -> None:
    # uv drops such a member without a word when it comes through an extra, a group or a member.
    root = read(ROOT / "pyproject.toml")
    groups = [{entry["package"] for entry in group} for group in root["tool"]["uv"]["conflicts"]]
    conflicting = set[str]().union(*groups)
    assert conflicting <= set(MEMBERS)
    grouped = [raw for listed in root["dependency-groups"].values() for raw in listed]
    wanted = {Requirement(raw).name for raw in [*root["project"]["dependencies"], *grouped]}
    for member in MEMBERS:
        wanted |= {requirement.name for requirement in requirements(project(member))}
    assert not wanted & conflicting


def test_light_environment_holds_no_runtime() -> None:
    light = locked()
    assert {"numpy", "pydantic", "tokenizers"} <= light
    assert not light & {"torch", "transformers", "vllm", "openvino", "llama-cpp-python"}


@pytest.mark.parametrize("runtime", ["llama-cpp-python", "tinygrad", "httpx"])
def test_light_engine_brings_only_its_own_runtime(runtime: str) -> None:
    engines = [
        name
        for name in MEMBERS
        if (source(name) / "engine.py").is_file()
        and any(requirement.name == runtime for requirement in requirements(project(name)))
    ]
    assert engines
    for member in engines:
        brought = locked("--package", member, "--no-dev")
        assert runtime in brought
        assert not brought & {"torch", "transformers"}, member


def locked(*selection: str) -> set[str]:
    """The third-party packages that the lock gives a selection of members."""
    command = [uv(), "export", "--frozen", "--no-hashes", "--no-header", "--no-annotate", "--quiet"]
    done = subprocess.run(
        [*command, *selection], cwd=ROOT, capture_output=True, text=True, check=True
    )
    third_party = [line for line in done.stdout.splitlines() if not line.startswith("-e ")]
    return {canonicalize_name(Requirement(line).name) for line in third_party}


def uv() -> str:
    path = os.environ.get("UV") or shutil.which("uv")
    assert path, "uv is not on PATH"
    return path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the wheel of every member, by name of the distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    command = [uv(), "build", "--all-packages", "--wheel", "--quiet", "--out-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    return {path.name.partition("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}


def test_every_member_builds(wheels: dict[str, Path]) -> None:
    assert sorted(wheels) == MEMBERS


def test_wheels_hold_their_package_and_nothing_else(wheels: dict[str, Path]) -> None:
    for member, path in wheels.items():
        package = source(member).name
        with zipfile.ZipFile(path) as wheel:
            files = wheel.namelist()
        assert f"{package}/py.typed" in files
        assert {name.split("/")[0].partition("-")[0] for name in files} == {
            package,
            member.replace("-", "_"),
        }


def test_core_requires_pydantic_alone(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["evalution-core"]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(wheel.read(name))
    required = [Requirement(raw).name for raw in metadata.get_all("Requires-Dist", [])]
    assert required == ["pydantic"]
    assert metadata["License-Expression"] == "Apache-2.0"
