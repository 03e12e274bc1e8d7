"""Importing a package loads no runtime and few modules, whatever is installed beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

RUNTIMES = {"httpx", "numpy", "rich", "tokenizers", "torch", "transformers", "yaml"}

PROBE = """
import json, sys
before = set(sys.modules)
__import__(sys.argv[1])
print(json.dumps(sorted(set(sys.modules) - before)))
"""

# What was counted on CPython 3.11 with the locked pydantic, and a tenth.
CEILINGS = {"evalution_core": 170, "evalution_enginekit": 254}


@cache
def loaded_by(module: str) -> list[str]:
    command = [sys.executable, "-c", PROBE, module]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("module", sorted(CEILINGS))
def test_import_loads_no_runtime(module: str) -> None:
    loaded = {name.partition(".")[0] for name in loaded_by(module)}
    assert not loaded & RUNTIMES


@pytest.mark.parametrize("module", sorted(CEILINGS))
def test_import_loads_few_modules(module: str) -> None:
    loaded = loaded_by(module)
    assert len(loaded) <= CEILINGS[module], loaded
