"""The recorded signatures hold what is used: a drift in a copy of them is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1]
TOOL = PACKAGE.parents[1] / "tools" / "check_upstream_api.py"

PLANTED = {
    "a renamed parameter": (
        "llmapi/llm.pyi",
        "streaming: bool",
        "stream: bool",
        "tensorrt_llm.llmapi.llm.BaseLLM.generate_async: no parameter streaming",
    ),
    "another default": (
        "sampling_params.pyi",
        "max_tokens: int = 32",
        "max_tokens: int = 16",
        "default of max_tokens is 16, not 32",
    ),
    "a result that moved": (
        "executor/result.pyi",
        "    prompt_logprobs:",
        "    prompt_log_probs:",
        "tensorrt_llm.executor.result.CompletionOutput has no prompt_logprobs",
    ),
    "an option that is gone": (
        "llmapi/llm_args.pyi",
        "enable_block_reuse",
        "reuse_blocks",
        "tensorrt_llm.llmapi.llm_args.KvCacheConfig has no field enable_block_reuse",
    ),
    "an error queue that is read elsewhere": (
        "executor/executor.pyi",
        "_handle_background_error",
        "check_errors",
        "tensorrt_llm.executor.executor.GenerationExecutor has no _handle_background_error",
    ),
}


def checked(packages: Path) -> tuple[int, str]:
    command = [sys.executable, str(TOOL), "--packages", str(packages), PACKAGE.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "dist")
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=ignored)
    return tmp_path / PACKAGE.name


def test_used_api_is_the_recorded_one() -> None:
    status, printed = checked(PACKAGE.parent)
    assert status == 0, printed


@pytest.mark.parametrize("release", ["1.2", "1.3"])
@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_planted_drift_is_reported_with_file_and_line(
    copy: Path, release: str, planted: tuple[str, str, str, str]
) -> None:
    name, old, new, expected = planted
    file = copy / "tests" / "recorded" / release / "tensorrt_llm" / name
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    status, printed = checked(copy.parent)
    assert status == 1
    found = [line for line in printed.splitlines() if expected in line]
    assert any("src/evalution_tensorrt_llm/upstream.py:" in line for line in found)
    assert all(f" tests/recorded/{release} tensorrt_llm/{name}:" in line for line in found)
    if "field" not in expected and "_handle" not in expected:
        assert any("tests/fake_t" in line for line in found)
