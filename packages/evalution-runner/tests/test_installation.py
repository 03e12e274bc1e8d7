"""Another project's `evalution`, and CUDA without a GPU, are found by their metadata."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evalution
from evalution.installation import find_name_clash, find_unused_cuda
from evalution_core import ConfigurationError

Install = Callable[..., None]
CLASH = "evalution 0.0.17 is installed beside evalution-runner: it is another project"
CURE = "uninstall both (pip uninstall evalution evalution-runner)"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a distribution's metadata, with one file of `size` bytes, before all others."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def write(name: str, version: str, *, requires: str = "", size: int = 0) -> None:
        about = site / f"{name.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requires}"] * bool(requires)
        (about / "METADATA").write_text("\n".join([*lines, "", ""]), encoding="utf-8")
        (about / "RECORD").write_text(f"{name}/lib.so,sha256=,{size}\n", encoding="utf-8")
        (site / name).mkdir()
        (site / name / "lib.so").touch()  # Python 3.12 lists only the files that exist.

    return write


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves no vendor's tool on PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.mark.parametrize("words", [["engines"], ["run", "none.yaml"], ["gsm8k", "-m", "x"]])
def test_command_refuses_to_start_beside_the_other_project(
    command_line: Any, install: Install, words: list[str]
) -> None:
    install("evalution", "0.0.17")
    done = command_line(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: the distribution {CLASH}")
    assert CURE in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_run_refuses_to_start_beside_the_other_project(install: Install) -> None:
    install("evalution", "0.0.17")
    with pytest.raises(ConfigurationError, match=CLASH):
        evalution.Run(None)


def test_doctor_names_the_other_project_and_fails(command_line: Any, install: Install) -> None:
    install("evalution", "0.0.17")
    done = command_line("doctor", "Reference")
    assert done.returncode == 1
    assert f"!! the distribution {CLASH}" in done.stdout
    assert "ok Reference" in done.stdout


def test_distribution_that_requires_the_runner_is_no_clash(install: Install) -> None:
    assert find_name_clash() is None
    install("evalution", "1.0", requires="evalution-runner>=1.0")
    assert find_name_clash() is None


@pytest.mark.skipif(sys.platform == "win32", reason="an empty PATH hides the system's own tools")
@pytest.mark.usefixtures("no_gpu")
def test_doctor_hints_at_cuda_without_a_gpu(command_line: Any, install: Install) -> None:
    install("torch", "2.13.0", requires="nvidia-cublas")
    install("nvidia-cublas", "13.1", size=542_000_000)
    install("nvidia-cudnn-cu13", "9.1", size=700_000_000)
    done = command_line("doctor", "TensorRTLLM", "--json")
    (notice,) = json.loads(done.stdout)["notices"]
    assert "torch 2.13.0 is a CUDA build, and this machine has no GPU" in notice
    assert "2 packages nvidia-* take 1,242 MB" in notice
    assert "uv pip install --torch-backend cpu --reinstall-package torch torch==2.13.0" in notice
    assert notice.endswith("uv pip uninstall nvidia-cublas nvidia-cudnn-cu13")


def test_cpu_build_beside_a_small_package_of_nvidia_is_no_cuda_build(install: Install) -> None:
    install("nvidia-ml-py", "13.0", size=400_000)
    assert find_unused_cuda() is None
    install("torch", "2.13.0+cpu")
    assert find_unused_cuda() is None
