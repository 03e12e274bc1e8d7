"""The machine as `evalution doctor` shows it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from evalution.doctor.machine import inspect_machine


def test_machine_is_described() -> None:
    machine = inspect_machine()
    assert machine.python.endswith(sys.version.split()[0])
    assert machine.executable == sys.executable


@pytest.mark.skipif(sys.platform == "win32", reason="the tools are played by shell scripts")
@pytest.mark.parametrize(
    ("tool", "body", "shown"),
    [
        (
            "nvidia-smi",
            "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'",
            "GPU       GPU 0: NVIDIA H200 (UUID: GPU-1)",
        ),
        ("nvidia-smi", "echo no driver >&2; exit 9", "nvidia-smi failed with 9: no driver"),
        ("nvidia-smi", "exit 0", "none that nvidia-smi or rocm-smi reports"),
        ("rocm-smi", "echo no driver >&2", "none that nvidia-smi or rocm-smi reports"),
        ("rocm-smi", "echo device,Card series; echo card0,MI300", "GPU       card0,MI300"),
    ],
)
def test_accelerators_are_those_of_the_vendors_tools(
    command_line: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tool: str,
    body: str,
    shown: str,
) -> None:
    program = tmp_path / "bin" / tool
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    assert shown in command_line("doctor", "TensorRTLLM").stdout
