"""Which commit an installed distribution was made of, where that can be known."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

_SECONDS = 10
_COMMIT = "# branch.oid "
_ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
"""What a hook of another repository leaves in the environment."""


@cache
def commit_of(name: str) -> Mapping[str, Any] | None:
    """The commit of a distribution that was installed from a repository (PEP 610).

    For an editable one, `dirty` tells whether its folder differs from the commit. None for one of
    an index or archive, without git, or outside of any repository. What it was when first asked is
    kept: the code that runs was imported then.
    """
    try:
        text = distribution(name).read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    try:
        origin: Any = json.loads(text or "{}")
        if "vcs_info" in origin:
            return {"commit": str(origin["vcs_info"]["commit_id"]), "dirty": False}
        if not origin.get("dir_info", {}).get("editable"):
            return None
        folder = Path(url2pathname(urlsplit(str(origin["url"])).path))
    except (ValueError, KeyError, AttributeError, TypeError):
        return None  # a file of somebody else's that isn't as PEP 610 has it
    return _commit_in(folder)


def _commit_in(folder: Path) -> Mapping[str, Any] | None:
    # Neither a lock nor a monitor: only to look must not disturb somebody who works there.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), "status"]
    options = ["--porcelain=v2", "--branch", "--no-ahead-behind", "--", "."]
    environment = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    try:
        done = subprocess.run(
            [*command, *options],
            env={**environment, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.splitlines()
    commit = next((line.removeprefix(_COMMIT) for line in lines if line.startswith(_COMMIT)), "")
    if not commit or commit.startswith("("):  # "(initial)": nothing was committed yet
        return None
    return {"commit": commit, "dirty": any(not line.startswith("#") for line in lines)}
