"""What CI runs follows from what the members declare, and a failed stage hides no other."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import ci
import members
from evalution_enginekit import new

ROOT = Path(__file__).parents[1]


def test_every_requirement_file_is_declared_by_a_member() -> None:
    files = {path.stem for path in (ROOT / "tools" / "envs").glob("*.txt")}
    assert files == set(members.read_environments())


def test_tests_of_an_environment_exist() -> None:
    for environment in members.read_environments().values():
        assert environment.tests
        for path in environment.tests:
            assert (ROOT / path).exists(), f"{environment.name}: {path}"
    for path in (*ci.ON_OTHER_PYTHONS, *ci.NO_VERSIONS):
        assert (ROOT / path.removeprefix("--ignore=")).exists(), path


def test_what_is_skipped_without_torch_runs_where_it_is() -> None:
    skipped = re.compile(r'importorskip\(\s*"(?:torch|transformers)"')
    environments = members.read_environments().values()
    named = [path for one in environments if one.torch for path in one.tests]
    for path in ROOT.glob("packages/*/tests/**/test_*.py"):
        if skipped.search(path.read_text(encoding="utf-8")):
            assert any(path.is_relative_to(ROOT / each) for each in named), path


def test_options_without_paths_run_the_tests_of_their_environment() -> None:
    tinker = members.read_environments()["tinker"]
    assert ci.test_command(tinker, ["-k", "name"])[-3:] == ["-k", "name", *tinker.tests]
    one = "packages/evalution-tinker/tests/conftest.py::test"
    assert ci.test_command(tinker, ["-q", one])[-2:] == ["-q", one]


def test_every_member_outside_the_light_environment_is_tested_in_another() -> None:
    light = ci.read_light()
    tested = {name for one in members.read_environments().values() for name in one.members}
    everywhere = {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")}
    assert everywhere - light <= tested


def test_new_engine_gets_an_environment_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (packages / "evalution-core").mkdir()
    (packages / "evalution-core" / "pyproject.toml").touch()
    assert new.main(["zeta", "--into", str(packages)]) == 0
    monkeypatch.setattr(members, "ROOT", tmp_path)
    environment = members.read_environments()["zeta"]
    assert environment.tests == ["packages/evalution-zeta"]
    assert "evalution-zeta" in environment.members
    assert "evalution-core" in environment.members
    (sync,) = ci.build_commands(environment)
    assert sync[:2] == ["uv", "sync"]
    assert "--package=evalution-zeta" in sync


def test_failed_stage_lets_the_others_run(capfd: pytest.CaptureFixture[str]) -> None:
    stages = ci.Stages()
    line = "print('=== 3 passed, 1 failed, 2 skipped in 1.0s ===')"
    assert not stages.run("broken", [sys.executable, "-c", f"{line}; raise SystemExit(1)"])
    assert not stages.run("silent", [sys.executable, "-c", "print('a word'); raise SystemExit(2)"])
    assert not stages.run("absent", ["no-such-program"])
    ruff = "print('I001 x'); print(' --> x.py:1:1'); print('/x.py:2:10 - error: no'); 1 / 0"
    assert not stages.run("check", [sys.executable, "-c", ruff])
    assert stages.run("sound", [sys.executable, "-c", line.replace(", 1 failed", "")])
    assert stages.close() == 1
    printed = capfd.readouterr().out
    assert "broken, silent, absent, check FAILED" in printed
    assert "\nsilent:\na word\n" in printed
    assert "\nabsent:\n[Errno 2] No such file or directory: 'no-such-program'\n" in printed
    assert "\ncheck:\n --> x.py:1:1\n/x.py:2:10 - error: no\n" in printed
    assert printed.endswith("\n6 passed, 4 failed, 4 skipped\n")


def test_stage_beside_others_prints_in_one_piece_and_counts(
    capfd: pytest.CaptureFixture[str],
) -> None:
    stages = ci.Stages()
    prints = "print('first'); print('FAILED test_x'); print('1 passed, 1 failed in 1.0s')"
    command = [sys.executable, "-c", f"{prints}; raise SystemExit(1)"]
    assert not stages.run("beside", command, is_beside=True)
    assert stages.close() == 1
    printed = capfd.readouterr().out
    assert "first\nFAILED test_x\n1 passed, 1 failed in 1.0s\nbeside: FAILED" in printed
    assert "\nbeside:\nFAILED test_x\n" in printed
    assert printed.endswith("\n1 passed, 1 failed, 0 skipped\n")


def test_environments_share_the_bytecode_of_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "bytecode"
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(kept))
    places: list[Path] = []
    for name, version in (("a", "1.0"), ("b", "1.0"), ("c", "1.1")):
        packages = tmp_path / name / "lib" / "python3.11" / "site-packages"
        (packages / "pack").mkdir(parents=True)
        record = packages / f"pack-{version}.dist-info" / "RECORD"
        record.parent.mkdir()
        record.write_text(
            f"pack/__init__.py,,\n../../../bin/pack,,\n{record.parent.name}/RECORD,,\n"
        )
        for _ in range(2):  # as in a second run
            ci.share_bytecode(tmp_path / name)
        places.append(kept / str(packages / "pack").lstrip("/"))
    first, second, third = places
    assert first.resolve() == second.resolve() != third.resolve()
    assert all(place.is_dir() for place in places)
