"""`evalution_enginekit.new` writes an engine that works before a line of it is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from evalution_enginekit import new

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def zeta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a new engine, `evalution-zeta-two`."""
    folder = tmp_path_factory.mktemp("alone")
    assert new.main(["zeta-two", "--into", str(folder)]) == 0
    return folder / "evalution-zeta-two"


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
        "tests/conftest.py",
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


def run_tests(zeta: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=zeta,
        env={**os.environ, "PYTHONPATH": str(zeta / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_new_engine_passes_its_own_tests(zeta: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    run_tests(zeta, f"--conformance-report={report}")
    written = json.loads(report.read_text(encoding="utf-8"))
    outcomes = {check["outcome"] for engine in written["engines"] for check in engine["checks"]}
    assert outcomes == {"passed", "refused", "skipped"}


def test_new_engines_tests_are_found_in_pytests_other_import_mode(zeta: Path) -> None:
    found = run_tests(zeta, "--collect-only", "--import-mode=importlib")
    assert "test_conformance.py::" in found


def test_engine_outside_a_workspace_has_sources_of_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new.main(["acme", "--class", "ACME", "--into", str(tmp_path)]) == 0
    project = tomllib.loads((tmp_path / "evalution-acme" / "pyproject.toml").read_text("utf-8"))
    assert "tool" not in project
    assert project["project"]["entry-points"]["evalution.engines"] == {
        "ACME": "evalution_acme.engine:ACME"
    }
    steps = capsys.readouterr().out.partition("next:")[2].splitlines()
    assert steps[1].strip() == f"cd {tmp_path / 'evalution-acme'}"
    assert steps[2].split("#")[0].strip() == "pip install -e . evalution-conformance pytest"


def test_engine_inside_this_workspace_takes_its_members(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packages = tmp_path / "packages"
    core = packages / "evalution-core"
    core.mkdir(parents=True)
    (core / "pyproject.toml").touch()
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    assert new.main(["acme", "--into", str(packages)]) == 0
    text = (packages / "evalution-acme" / "pyproject.toml").read_text("utf-8")
    tool = tomllib.loads(text)["tool"]
    assert tool["uv"]["sources"]["evalution-core"] == {"workspace": True}
    assert tool["evalution"]["environments"] == [{"name": "acme"}]
    assert "uv run --no-sync pytest packages/evalution-acme" in capsys.readouterr().out


@pytest.mark.parametrize("title", ["acme", "A-B", "True"])
def test_class_that_can_name_no_engine_is_refused(
    title: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new.main(["acme", "--class", title, "--into", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip() == (
        f"new: {title!r} can't name the engine's class; use letters and digits after a capital, "
        "such as LlamaCpp"
    )


@pytest.mark.parametrize("name", ["Acme", "a_b", "9lives", "a--b", "a b", ""])
def test_name_that_can_name_no_engine_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new.main([name, "--into", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip() == (
        f"new: {name!r} can't name an engine; use lower-case letters, digits and hyphens, "
        "such as llama-cpp"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "asked", "renamed"),
    [
        (["lambda"], "an engine named 'lambda'", "lambda"),
        (["async"], "an engine named 'async'", "async"),
        (["evalution-class"], "an engine named 'class'", "class"),
        (["folder"], "an engine named 'folder'", "folder"),
        (["acme", "--class", "Model"], "the class 'Model'", "Model"),
        (["base-engine"], "the class 'BaseEngine'", "BaseEngine"),
        (["acme", "--class", "Token"], "the class 'Token'", "TokenSession"),
    ],
)
def test_name_that_means_something_else_in_the_code_is_refused(
    words: list[str], asked: str, renamed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new.main([*words, "--into", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip() == (
        f"new: {asked} would be {renamed} in its code, which means something else there; choose "
        "another name"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["type", "lambda-ai"])
def test_name_that_python_takes_gives_code_that_parses(name: str, tmp_path: Path) -> None:
    assert new.main([name, "--into", str(tmp_path)]) == 0
    for file in tmp_path.rglob("*.py"):
        compile(file.read_text(encoding="utf-8"), str(file), "exec")


def test_name_of_an_installed_package_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new.main(["core", "--into", str(tmp_path)]) == 2
    assert "the package evalution-core is installed here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_engine_that_is_there_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evalution-acme").mkdir()
    assert new.main(["evalution-acme", "--into", str(tmp_path)]) == 2
    assert "evalution-acme exists already; choose another name" in capsys.readouterr().err
    assert list((tmp_path / "evalution-acme").iterdir()) == []
