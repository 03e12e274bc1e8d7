"""`evalution conform` runs the checks on an engine by name and writes the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from evalution_conformance import command
from evalution_conformance.command import conform, declare
from evalution_conformance.reference_values import open_reference
from evalution_conformance.subject import Subject
from evalution_core import Capability, ConfigurationError, EvalutionError, Model
from evalution_core.discovery import ENGINES
from evalution_reference.engine import Reference


def test_mock_conforms_and_the_report_says_with_what(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mock = "evalution_enginekit.mock:Mock"
    conform(mock, "mock", oracle=mock, pairs=["batch_size=3"], output=tmp_path)
    printed = capfd.readouterr().out.splitlines()
    assert printed[0] == "passed    the engine is found by its name"
    assert sum(line.startswith("refused   ") for line in printed) == 2
    report = json.loads((tmp_path / "conformance.json").read_text("utf-8"))
    (checked,) = report["engines"]
    assert checked["is_built"]
    assert checked["tolerance"] == 1e-9
    assert checked["options"]["batch_size"] == 3
    assert checked["compared_with"]["engine"] == "Mock"
    assert "Conformance of Mock" in (tmp_path / "conformance.html").read_text("utf-8")


def test_broken_engine_ends_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text(
        "from dataclasses import dataclass\n"
        "from evalution_core import BaseEngine, BaseInferenceSession\n"
        "class Session(BaseInferenceSession):\n"
        "    def gc(self): ...\n"
        "    def close(self): ...\n"
        "    def generate(self, requests, *, batch_size=None): return []\n"
        "    def generate_continuous(self, requests, *, batch_size=None): yield from ()\n"
        "    def loglikelihood(self, requests, *, batch_size=None): return []\n"
        "    def loglikelihood_rolling(self, requests, *, batch_size=None): return []\n"
        "@dataclass(slots=True)\n"
        "class Broken(BaseEngine):\n"
        "    def build(self, model): return Session()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(typer.Exit) as ended:
        conform("broken:Broken", "any", output=tmp_path)
    assert ended.value.exit_code == 1
    assert "\nfailed    " in capfd.readouterr().out


def test_engine_that_cannot_be_built_ends_with_status_2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        conform("Reference", str(tmp_path / "absent"), output=tmp_path)
    assert ended.value.exit_code == 2
    assert "absent" in capfd.readouterr().out


def test_reason_why_no_check_could_begin_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here.py").write_text("from evalution_enginekit.mock import Mock\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=r"^no check .*Error: No module named 'here'$"):
        conform("here:Mock", "mock", output=tmp_path)


@pytest.fixture
def other_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package is installed whose engine has the name of this project's own."""
    other = tmp_path / "evalution_acme-1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Name: evalution-acme\nVersion: 1\n")
    point = "[evalution.engines]\nReference = evalution_enginekit.mock:Mock\n"
    (other / "entry_points.txt").write_text(point)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("other_reference")
def test_checks_run_the_engines_that_the_command_line_has_of_these_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[dict[str, Any]] = []
    monkeypatch.setitem(ENGINES.own, "Reference", "evalution-reference")  # as `evalution` does
    monkeypatch.setattr(command, "_run", lambda job, _: jobs.append(job))
    with pytest.raises(ConfigurationError, match="left no report"):
        conform("Reference", "builtin:tiny", oracle="reference", output=tmp_path)
    (job,) = jobs
    assert (job["engine"], job["oracle"]) == ("evalution-reference/Reference",) * 2
    assert declare(job).oracle == Reference(dtype="float64")


@pytest.mark.usefixtures("other_reference")
def test_unstored_values_are_those_of_this_projects_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(ENGINES.own, "Reference", raising=False)
    subject = Subject(Reference(), Model("builtin:tiny"))
    with open_reference(subject, Capability.GENERATE) as session:
        assert (session.describe_execution() or {})["dtype"] == "float64"


def test_unknown_engine_and_oracle_are_named(tmp_path: Path) -> None:
    with pytest.raises(EvalutionError, match="Acmee"):
        conform("Acmee", "builtin:tiny", output=tmp_path)
    with pytest.raises(EvalutionError, match="Nobody"):
        conform("Reference", "builtin:tiny", oracle="Nobody", output=tmp_path)


def test_model_of_no_oracle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--oracle-model needs --oracle"):
        conform("Reference", "builtin:tiny", oracle_model="x", output=tmp_path)
