"""The pages of the site, as they are written for its builder; `.ci/run` builds it strictly."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs_site import adapt_page, list_versions, write_pages

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    write_pages(folder)
    return folder


def read_navigation(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from read_navigation(part)


def test_navigation_has_every_page_once(pages: Path) -> None:
    settings = tomllib.loads((ROOT / "tools" / "docs_site.toml").read_text(encoding="utf-8"))
    listed = list(read_navigation(settings["project"]["nav"]))
    written = {page.relative_to(pages).as_posix() for page in pages.rglob("*.md")}
    assert sorted(listed) == sorted(
        name for name in written if not re.match(r"docs/decisions/\d", name)
    )


def test_public_names_are_in_the_reference(pages: Path) -> None:
    core = (pages / "api" / "evalution_core.md").read_text(encoding="utf-8")
    assert "\n::: evalution_core.BaseEngine\n" in core
    assert "::: evalution.run\n" in (pages / "api" / "evalution.md").read_text(encoding="utf-8")


def test_fences_keep_their_title_alone() -> None:
    shown = "```yaml title=a.yaml exit=2\nb: 1\n```\n\n```console exit=3\n$ x\n```\n"
    quoted = '```yaml title="a.yaml"\nb: 1\n```\n\n```console\n$ x\n```\n'
    assert adapt_page(shown) == quoted


def test_lists_and_tables_follow_a_blank_line() -> None:
    """Without one, Python-Markdown takes them for part of the paragraph; GitHub doesn't."""
    assert adapt_page("Two:\n- a\n  b\n- c\n") == "Two:\n\n- a\n  b\n- c\n"
    assert adapt_page("A table\n| a |\n|---|\n") == "A table\n\n| a |\n|---|\n"
    assert adapt_page("```\nx\n- a\n```\n") == "```\nx\n- a\n```\n"


def test_selector_lists_the_newest_version_first(tmp_path: Path) -> None:
    for name in ("0.9", "0.10", "assets"):
        (tmp_path / name).mkdir()
        if name != "assets":
            (tmp_path / name / "404.html").touch()
    list_versions(tmp_path)
    listed = json.loads((tmp_path / "versions.json").read_text(encoding="utf-8"))
    assert [entry["version"] for entry in listed] == ["0.10", "0.9"]
    assert "url=0.10/" in (tmp_path / "index.html").read_text(encoding="utf-8")
