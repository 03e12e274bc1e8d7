"""The README's commands and code, as they stand there."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from evalution import Generation
from evalution.rows.local import rows_path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_spec_runs_as_written(command_line: Any, tmp_path: Path) -> None:
    (yaml,) = blocks("yaml")
    (tmp_path / "spec.yaml").write_text(yaml, encoding="utf-8")
    (tmp_path / "sums.jsonl").write_bytes(rows_path("builtin:tiny/sums").read_bytes())
    assert command_line("validate", "spec.yaml").returncode == 0
    done = command_line("run", "spec.yaml", "--limit", "20")
    assert done.returncode == 0
    assert "1.0000" in done.stdout


def test_the_python_runs_as_written(
    command_line: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = blocks("python")
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("0.99")
    assert (tmp_path / "results" / "results.json").exists()


def test_every_option_of_generation_is_documented() -> None:
    told = set(re.findall(r"`(\w+)`", README))
    assert {option.name for option in fields(Generation)} <= told
