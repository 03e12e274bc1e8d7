"""What the runner's import costs: no engine, no runtime, neither YAML nor the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from evalution.cli.program import COMMANDS

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
        "import evalution.parity",
    ],
)
def test_the_import_is_light(code: str) -> None:
    heavy = ENGINE_PARTS | {"yaml", "rich", "typer", "pyarrow", "httpx"}
    assert not loaded_by(code) & heavy


HEAVY = ENGINE_PARTS | {
    *("datasets", "httpx", "huggingface_hub", "jinja2", "pandas", "psutil", "pyarrow"),
    *("requests", "scipy", "transformers"),
}


def test_help_and_lists_import_no_engine_and_nothing_heavy() -> None:
    lines = [["--help"], ["engines"], ["engines", "--json"], ["suites"], ["suites", "gsm8k"]]
    lines += [[command, "--help"] for command in COMMANDS]
    code = f"""
from evalution.cli import app
for words in {lines!r}:
    app(words, standalone_mode=False)
"""
    assert not loaded_by(code) & HEAVY


def test_completion_imports_no_engine_and_nothing_heavy() -> None:
    code = (
        "from evalution.cli.listings import *; "
        "assert 'Reference' in complete_known_engines('') and 'gsm8k' in complete_suites('')"
    )
    assert not loaded_by(code) & HEAVY


def test_the_doctor_imports_the_engines_elsewhere() -> None:
    code = "from evalution.cli import app; app(['doctor', 'Reference'], standalone_mode=False)"
    assert not loaded_by(code) & ENGINE_PARTS
