"""What the runner's import costs: no engine, no runtime, neither YAML nor the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROBE = """
import contextlib, io, json, sys
with contextlib.redirect_stdout(io.StringIO()):
    exec(sys.argv[1])
print(json.dumps(sorted(sys.modules)))
"""
ENGINE_PARTS = {"evalution_reference", "evalution_enginekit", "numpy", "tokenizers", "torch"}


def loaded_by(code: str) -> set[str]:
    command = [sys.executable, "-c", PROBE, code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


@pytest.mark.parametrize(
    "code",
    [
        "import evalution, evalution.engines.base, evalution.config; dir(evalution.engines)",
        "import evalution; evalution.suites.available_suites()",
    ],
)
def test_the_import_is_light(code: str) -> None:
    heavy = ENGINE_PARTS | {"yaml", "rich", "typer", "pyarrow", "httpx"}
    assert not loaded_by(code) & heavy


def test_listing_engines_imports_none() -> None:
    code = "from evalution.cli import app; app(['engines'], standalone_mode=False)"
    assert not loaded_by(code) & ENGINE_PARTS


def test_help_imports_no_engine() -> None:
    code = "from evalution.cli import app; app(['run', '--help'], standalone_mode=False)"
    assert not loaded_by(code) & ENGINE_PARTS
