"""Run the static checks: `uv run tools/check.py`, or only those that are named.

`just check`, the pre-commit hooks and `.ci/run` all come here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from lint_imports import source_folders
from members import pyright_settings

ROOT = Path(__file__).parents[1]

SETTINGS = ROOT / ".pyright.json"
CHECKS = {
    "format": ["ruff", "format", "--check", "."],
    "lint": ["ruff", "check", "."],
    "types": ["pyright", "--project", str(SETTINGS)],
    "imports": [sys.executable, "tools/lint_imports.py"],
    "house": [sys.executable, "tools/house.py"],
    "words": [sys.executable, "tools/words.py"],
    "lock": ["uv", "lock", "--check"],
}


def passes(name: str) -> bool:
    """Run one check at the root; pyright finds members that are not installed by PYTHONPATH."""
    paths = os.pathsep.join(str(folder) for folder in source_folders(ROOT).values())
    start = time.monotonic()
    if name == "types":
        SETTINGS.write_text(pyright_settings(), encoding="utf-8")
    done = subprocess.run(
        CHECKS[name], cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, check=False
    )
    outcome = "passed" if done.returncode == 0 else f"FAILED ({done.returncode})"
    print(f"check {name}: {outcome}, {time.monotonic() - start:.1f} s", flush=True)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", nargs="*", metavar="check", help=f"of {', '.join(CHECKS)}")
    chosen: list[str] = parser.parse_args().check or list(CHECKS)
    if unknown := [name for name in chosen if name not in CHECKS]:
        parser.error(f"no check named {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    failed = [name for name in chosen if not passes(name)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
