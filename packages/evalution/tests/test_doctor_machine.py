"""What `evalution doctor` tells of the machine: processor, accelerators, memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalution.doctor.accelerators import parse_nvidia, parse_rocm
from evalution.doctor.machine import features_of, parse_cpuinfo, this_machine


def test_the_machine_is_known() -> None:
    machine = this_machine()
    assert machine.python.endswith(sys.version.split()[0])
    assert 1 <= (machine.usable_cpus or 0) <= (machine.cpus or 0)
    assert machine.disk_free > 0


X86 = """processor\t: 0
model name\t: AMD EPYC 9454
flags\t\t: fpu avx avx2 fma avx512f amx_tile

processor\t: 1
model name\t: Another
flags\t\t: sse
"""
ARM = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes asimddp sve
CPU implementer\t: 0x41
"""


@pytest.mark.parametrize(
    ("text", "model", "features"),
    [
        (X86, "AMD EPYC 9454", ("avx2", "fma", "avx512f", "amx")),
        (ARM, None, ("neon", "dotprod", "sve")),
        ("", None, ()),
    ],
)
def test_cpuinfo_is_read(text: str, model: str | None, features: tuple[str, ...]) -> None:
    assert parse_cpuinfo(text) == (model, features)


@given(st.sets(st.text()))
def test_only_known_features_are_told(flags: set[str]) -> None:
    assert set(features_of(flags | {"avx2"})) >= {"avx2"}
    assert len(set(features_of(flags))) <= len(flags)


def test_devices_of_nvidia_are_read() -> None:
    printed = "0, NVIDIA H200, 143771, 143154, 570.86.15, 9.0\n1, GB10, [N/A], [N/A], 580.1, 12.1\n"
    first, second = parse_nvidia(printed)
    assert (first.name, first.memory, first.compute_capability) == (
        "NVIDIA H200",
        143771 << 20,
        "9.0",
    )
    assert (second.index, second.memory, second.driver) == (1, None, "580.1")
    assert parse_nvidia("") == []
    with pytest.raises(ValueError, match="zip"):
        parse_nvidia("No devices were found")


def test_devices_of_amd_are_read() -> None:
    told = {
        "card0": {
            "Card Series": "AMD Instinct MI300X",
            "VRAM Total Memory (B)": "205822885888",
            "VRAM Total Used Memory (B)": "1000",
        },
        "system": {"Driver version": "6.8"},
    }
    (device,) = parse_rocm(json.dumps(told))
    assert (device.name, device.memory_free) == ("AMD Instinct MI300X", 205822884888)


TOOL = """#!/bin/sh
{body}
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the tools are played by shell scripts")
@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("echo '0, NVIDIA H200, 143771, 143154, 570.86.15, 9.0'", "0: NVIDIA H200, 139.8 GiB free"),
        ("echo no driver >&2; exit 9", "nvidia-smi failed with 9: no driver"),
        ("echo what", "nvidia-smi printed what could not be read"),
    ],
)
def test_the_tools_of_the_system_are_asked(
    command_line: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, shown: str
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(TOOL.format(body=body))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    done = command_line("doctor", "TensorRTLLM")
    assert shown in done.stdout
    assert "CUDA_VISIBLE_DEVICES='1' decides" in done.stdout
