"""Packages that bring backends, as they would be installed: a module and metadata on the path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from evalution_training import registry


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Each test begins, and leaves the process, without backends of its own."""
    for known in registry._REGISTRIES.values():
        monkeypatch.setattr(known, "_registered", {})
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("a_plugin", "evsys_sdk", "tinker")):
            del sys.modules[name]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A function that installs a distribution: modules by file name, entry points by group."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def put(distribution: str, modules: dict[str, str], points: dict[str, str]) -> Path:
        info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", encoding="utf-8"
        )
        text = "".join(f"[{group}]\n{lines}\n" for group, lines in points.items())
        (info / "entry_points.txt").write_text(text, encoding="utf-8")
        for name, source in modules.items():
            file = site / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source, encoding="utf-8")
        return site

    return put
