"""Engines and suites of other packages: found by metadata, and no worse for a broken neighbour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalution import Generation
from evalution.spec.run_spec import parse_engine
from evalution.suites import available_suites, load_suite
from evalution_core import ConfigurationError, EngineUnavailableError

ENGINE = """
from dataclasses import dataclass
from evalution_enginekit.mock import Mock

@dataclass(slots=True)
class Good(Mock):
    pass
"""
SUITE = """
from dataclasses import dataclass
from evalution import Generation

@dataclass(kw_only=True)
class Echo(Generation):
    target: str = "question"
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with one good distribution and three that are broken each in its own way."""
    package(tmp_path, "good", ENGINE, "[evalution.engines]\nGood = good:Good\n")
    package(tmp_path, "raising", "raise RuntimeError('it broke')\n", entry("Raising", "raising:X"))
    package(tmp_path, "absent", "", entry("Absent", "no_such_module:X"))
    package(tmp_path, "foreign", "X = 3\n", entry("Foreign", "foreign:X"))
    package(tmp_path, "echo", SUITE, "[evalution.suites]\nEcho = echo:Echo\n")
    (tmp_path / "rows.jsonl").write_text('{"question": "x"}\n')
    return tmp_path


def entry(name: str, value: str) -> str:
    return f"[evalution.engines]\n{name} = {value}\n"


def package(site: Path, name: str, code: str, entry_points: str) -> None:
    (site / f"{name}.py").write_text(code)
    info = site / f"{name}_plugin-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-plugin\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_a_suite_that_two_packages_bring_is_named_by_one(site: Path, command_line: Any) -> None:
    package(site, "other", SUITE, "[evalution.suites]\nEcho = other:Echo\n")
    with pytest.raises(ConfigurationError) as caught:
        load_suite("echo")
    assert str(caught.value) == (
        "suite 'echo' is provided more than once; name one of: echo-plugin/Echo, other-plugin/Echo"
    )
    assert load_suite("other-plugin/Echo").__module__ == "other"
    assert {"echo-plugin/Echo", "other-plugin/Echo"} <= set(available_suites())


def test_an_exact_name_goes_before_one_that_is_alike(site: Path, command_line: Any) -> None:
    package(site, "other", SUITE, "[evalution.suites]\necho = other:Echo\n")
    assert load_suite("Echo").__module__ == "echo"
    assert load_suite("echo").__module__ == "other"


def test_no_package_takes_the_place_of_a_built_in_suite(site: Path, command_line: Any) -> None:
    package(site, "other", SUITE, "[evalution.suites]\nGeneration = other:Echo\n")
    with pytest.raises(ConfigurationError, match="other-plugin/Generation, evalution/Generation"):
        load_suite("generation")
    assert load_suite("evalution/Generation") is Generation


def spec(site: Path, engine: str) -> str:
    (site / "spec.yaml").write_text(
        f"engine: {engine}\nmodel: m\ntests: [{{type: echo, data: rows.jsonl, prompt: question}}]\n"
    )
    return "spec.yaml"


def test_all_are_listed_and_none_imported(command_line: Any, site: Path) -> None:
    done = command_line("engines")
    assert done.returncode == 0, done.stderr
    for name in ("Good", "Raising", "Absent", "Foreign", "good-plugin", "2.1"):
        assert name in done.stdout


def test_a_good_one_runs_beside_broken_ones(command_line: Any, site: Path) -> None:
    done = command_line("run", spec(site, "good"), "--output", "out")
    assert done.returncode == 0, done.stderr
    assert "exact_match" in done.stdout
    results = (site / "out" / "results.json").read_text(encoding="utf-8")
    assert '"distribution": "good-plugin"' in results
    assert '"version": "2.1"' in results


@pytest.mark.parametrize(
    ("engine", "code", "message"),
    [
        ("Raising", 1, "engine 'Raising' of raising-plugin (raising:X) can't be loaded: Runtime"),
        ("Absent", 1, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("Foreign", 2, "engine 'Foreign' of foreign-plugin isn't a BaseEngine, but 3"),
    ],
)
def test_a_broken_one_is_named_with_its_cause(
    command_line: Any, site: Path, engine: str, code: int, message: str
) -> None:
    done = command_line("run", spec(site, engine))
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_suite_beside_the_spec_is_told_how_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("class Suite: ...\n", encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_suite("beside:Suite")
    assert str(caught.value) == (
        "suite 'beside:Suite' (beside:Suite) can't be loaded: ModuleNotFoundError: No module named "
        "'beside'; beside.py is in the working folder, which `python -m evalution` looks into"
    )


def test_an_engine_beside_the_spec_is_told_how_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lying_beside.py").write_text("class Engine: ...\n", encoding="utf-8")
    with pytest.raises(EngineUnavailableError, match="No module named 'lying_beside'") as caught:
        parse_engine("lying_beside:Engine")
    assert caught.value.__notes__ == [
        "lying_beside.py is in the working folder, which `python -m evalution` looks into"
    ]
    with pytest.raises(EngineUnavailableError) as caught:
        parse_engine("lying_nowhere:Engine")
    assert not getattr(caught.value, "__notes__", ())
