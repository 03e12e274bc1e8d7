from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalution.fidelity.store import write_fidelity


@pytest.fixture
def folders(folder: Path, make_fidelity: Any) -> Path:
    for name, result in {
        "q4": make_fidelity(0.03, label="q4"),
        "q8": make_fidelity(0.01, label="q8"),
        "narrow": replace(make_fidelity(0.02), window=64),
    }.items():
        (folder / name).mkdir()
        write_fidelity(result, folder / name)
    (folder / "run").mkdir()
    (folder / "run" / "results.json").touch()
    return folder


def test_measurements_of_one_reference_are_compared(folders: Path, command_line: Any) -> None:
    done = command_line("compare", "q4", "q8")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]

    assert done.returncode == 0
    assert "candidate mean KL weights less control p99 same top flips mass" in lines[1]
    assert [line.split()[0] for line in lines if " on LlamaCpp" in line] == ["q8", "q4"]
    found = json.loads(command_line("compare", "q4", "q8", "--json").stdout)
    assert [result["candidate"]["model"]["label"] for result in found] == ["q8", "q4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["q4", "narrow"], "can't be compared: their reference, texts, window or mode differ"),
        (["q4", "q8", "--flipped", "3"], "--flipped is for runs"),
        (["q4", "nowhere"], "there is no "),
        (["run", "q4"], "q4 holds a fidelity measurement and run a run; compare two of one kind"),
    ],
)
def test_measurements_that_can_not_be_compared_are_reported(
    folders: Path, command_line: Any, assert_says: Any, arguments: list[str], message: str
) -> None:
    assert_says(command_line("compare", *arguments), 2, message)
