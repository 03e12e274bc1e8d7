"""What a model's files are, by content, so that a cached answer can't be another model's."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import cast

_CHUNK = 1 << 20


def files_identity(files: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of each file of one folder, by name.

    A file of unchanged size and modification time is not read again.
    """
    known = _read_cache()
    fresh: dict[str, str] = {}
    identity: dict[str, str] = {}
    for file in sorted(files):
        status = file.stat()
        key = f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}"
        if key not in known:
            fresh[key] = _sha256(file)
        identity[file.name] = known.get(key) or fresh[key]
    if fresh:
        _write_cache({**known, **fresh})
    return identity


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _cache_file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "evalution" / "file-hashes.json"


def _read_cache() -> dict[str, str]:
    try:
        known = json.loads(_cache_file().read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, str]", known) if isinstance(known, dict) else {}


def _write_cache(entries: dict[str, str]) -> None:
    file = _cache_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}.part")
        partial.write_text(json.dumps(entries), "utf-8")
        partial.replace(file)
    except OSError:
        # a read-only home costs hashing again, nothing else
        return
