"""`tools/lint_imports.py` finds a planted fault in members that it has never seen."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lint_imports import RUNNER_MODULES

ROOT = Path(__file__).parents[1]


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "lint_imports.py"), "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A workspace with the members that the arrows name, and two engines that they do not."""
    named = ["", "_conformance", "_core", "_enginekit", "_openvino", "_reference", "_transformers"]
    for suffix in [*named, "_acme", "_other"]:
        write(tmp_path, f"evalution{suffix}", "__init__.py", "")
    return tmp_path


def write(root: Path, package: str, file: str, text: str) -> None:
    folder = root / "packages" / package.replace("_", "-") / "src" / package
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text, encoding="utf-8")


KEPT = [
    ("evalution_acme", "engine.py", "import evalution_core, evalution_enginekit, torch\n"),
    ("evalution_openvino", "session.py", "import evalution_transformers\n"),
    ("evalution_enginekit", "tokenizer.py", "import evalution_core, tokenizers\n"),
    ("evalution_conformance", "oracle.py", "import evalution_reference\n"),
    ("evalution_reference", "llama.py", "import numpy, evalution_enginekit\n"),
]
BROKEN = [
    ("evalution_acme", "import evalution_other\n"),
    ("evalution_acme", "import evalution\n"),
    ("evalution_acme", "import evalution_conformance\n"),
    ("evalution_acme", "import evalution_transformers\n"),
    ("evalution_core", "import evalution_enginekit\n"),
    ("evalution_core", "def late():\n    import numpy\n"),
    ("evalution_enginekit", "import evalution_acme\n"),
    ("evalution_enginekit", "def late():\n    import transformers\n"),
    ("evalution_enginekit", "import torch\n"),
    ("evalution", "import evalution_enginekit\n"),
    ("evalution", "def late():\n    import evalution_reference\n"),
]


def test_arrows_of_the_house_are_kept(house: Path) -> None:
    for package, file, text in KEPT:
        write(house, package, file, text)
    done = lint(house)
    assert done.returncode == 0, done.stdout


def test_any_other_arrow_is_broken(house: Path) -> None:
    for number, (package, text) in enumerate(BROKEN):
        write(house, package, f"planted{number}.py", text)
    done = lint(house)
    assert done.returncode == 1
    for number, (package, text) in enumerate(BROKEN):
        assert f"{package}.planted{number} ->" in done.stdout, text


def test_bridge_may_import_only_documented_modules_of_the_runner(house: Path) -> None:
    write(house, "evalution", "results.py", "")
    write(house, "evalution", "inner.py", "")
    write(house, "evalution_inspect", "__init__.py", "from evalution import results\n")
    assert lint(house).returncode == 0
    write(house, "evalution_inspect", "logs.py", "import evalution.inner\n")
    done = lint(house)
    assert done.returncode == 1
    assert "evalution_inspect.logs -> evalution.inner" in done.stdout


def test_readme_of_the_runner_lists_the_modules_for_bridges() -> None:
    text = (ROOT / "packages" / "evalution-runner" / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Modules for bridges")[2].partition("\n| extra |")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([a-z_.]+)`", row)}
    assert listed == set(RUNNER_MODULES)
