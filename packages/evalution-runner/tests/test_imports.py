"""What the runner's import costs: no engine, no runtime, neither YAML nor the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import evalution
from evalution.cli.program import COMMANDS

PROBE = """
import contextlib, io, json, sys
with contextlib.redirect_stdout(io.StringIO()):
    exec(sys.argv[1])
print(json.dumps(sorted(sys.modules)))
"""
ENGINE_PARTS = {"evalution_reference", "evalution_enginekit", "numpy", "tokenizers", "torch"}


def modules_loaded_by(code: str) -> set[str]:
    command = [sys.executable, "-c", PROBE, code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def loaded_by(code: str) -> set[str]:
    return {name.partition(".")[0] for name in modules_loaded_by(code)}


def test_import_of_the_package_alone_imports_nothing_else() -> None:
    loaded = modules_loaded_by("import evalution; dir(evalution)")
    assert {name for name in loaded if name.startswith("evalution")} == {"evalution"}
    assert not loaded & {"pydantic", "typing_extensions"}


def test_help_imports_no_command_and_no_table() -> None:
    loaded = modules_loaded_by(
        "from evalution.cli import app; app(['--help'], standalone_mode=False)"
    )
    packages = {"comparison", "fidelity", "parity", "results", "runs", "suites", "yaml_spec"}
    assert not loaded & {"rich", "yaml", *(f"evalution.{name}" for name in packages)}
    assert "evalution.cli.run" not in loaded


def test_package_has_no_other_attributes() -> None:
    assert [name for name in evalution.__all__ if getattr(evalution, name) is None] == []
    assert dir(evalution) == evalution.__all__
    with pytest.raises(AttributeError, match="module 'evalution' has no attribute 'Runs'"):
        _ = evalution.Runs  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]


@pytest.mark.parametrize(
    "code",
    [
        "from evalution import *; import evalution.engines.base, evalution.config; dir(engines)",
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
