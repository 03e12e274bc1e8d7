"""`tools/new_engine.py` writes an engine that works before a line of it is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


sys.path.insert(0, str(ROOT / "tools"))

import new_engine  # noqa: E402


@pytest.fixture(scope="module")
def zeta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a new engine, `evalution-zeta-two`."""
    packages = tmp_path_factory.mktemp("workspace") / "packages"
    packages.mkdir()
    assert new_engine.main(["zeta-two", "--packages", str(packages)]) == 0
    return packages / "evalution-zeta-two"


def test_new_engine_is_one_folder_of_nine_files(zeta: Path) -> None:
    files = sorted(path.relative_to(zeta).as_posix() for path in zeta.rglob("*") if path.is_file())
    assert files == [
        "CHANGELOG.md",
        "README.md",
        "pyproject.toml",
        "src/evalution_zeta_two/__init__.py",
        "src/evalution_zeta_two/engine.py",
        "src/evalution_zeta_two/py.typed",
        "src/evalution_zeta_two/session.py",
        "tests/fake_zeta_two.py",
        "tests/test_conformance.py",
    ]
    assert [path.name for path in zeta.parent.iterdir()] == ["evalution-zeta-two"]


def test_no_name_of_the_template_is_left(zeta: Path) -> None:
    for path in zeta.rglob("*"):
        assert "acme" not in path.name.lower()
        if path.is_file():
            assert "acme" not in path.read_text(encoding="utf-8").lower(), path


def test_version_ranges_admit_the_members_here(zeta: Path) -> None:
    table = tomllib.loads((zeta / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert table["entry-points"]["evalution.engines"] == {
        "ZetaTwo": "evalution_zeta_two.engine:ZetaTwo"
    }
    for requirement in map(Requirement, table["dependencies"]):
        member = ROOT / "packages" / requirement.name / "pyproject.toml"
        version = tomllib.loads(member.read_text(encoding="utf-8"))["project"]["version"]
        assert requirement.specifier.contains(version), str(requirement)


def test_new_engine_passes_its_own_tests(zeta: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", str(zeta)]
    report = zeta.parents[1] / "report.json"
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", f"--conformance-report={report}"],
        cwd=zeta.parents[1],
        env={**os.environ, "PYTHONPATH": str(zeta / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(report.read_text(encoding="utf-8"))
    outcomes = {check["outcome"] for engine in told["engines"] for check in engine["checks"]}
    assert outcomes == {"passed", "refused", "skipped"}


@pytest.mark.parametrize("tool", ["check", "format"])
def test_new_engine_passes_the_linter(zeta: Path, tool: str) -> None:
    arguments = {"check": ["check"], "format": ["format", "--check"]}[tool]
    configuration = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    command = [sys.executable, "-m", "ruff", *arguments, *configuration, str(zeta)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["Acme", "a_b", "9lives", "a--b", "a b", ""])
def test_name_that_can_name_no_engine_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new_engine.main([name, "--packages", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip() == (
        f"new_engine: {name!r} can't name an engine; use lower-case letters, digits and hyphens, "
        "such as llama-cpp"
    )
    assert list(tmp_path.iterdir()) == []


def test_engine_that_is_there_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evalution-acme").mkdir()
    assert new_engine.main(["evalution-acme", "--packages", str(tmp_path)]) == 2
    assert "evalution-acme exists already; choose another name" in capsys.readouterr().err
    assert list((tmp_path / "evalution-acme").iterdir()) == []
