"""Build the documents as a site: `uv run --only-group docs tools/docs_site.py`.

    docs_site.py                  build/site
    docs_site.py --version 0.1    build/site/0.1, and a list of all versions that are there

The pages of the repository keep their places below `build/pages`, so that a link which works on
GitHub works in the site; README.md is the front page of both. The reference of the Python names is
written here, from what each public module exports. A link or an anchor that leads nowhere fails the
build. Nothing is published: a web server that is given `build/site` has all versions built into it.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
COPIED = [
    "README.md",
    "CONTRIBUTING.md",
    "docs",
    "packages/*/README.md",
    "tools/bench/README.md",
    "tools/envs/README.md",
    "tools/members.py",
]
REFERENCE = {
    "evalution": "packages/evalution-runner/src/evalution/__init__.py",
    "evalution.suites": "packages/evalution-runner/src/evalution/suites/__init__.py",
    "evalution_core": "packages/evalution-core/src/evalution_core/__init__.py",
    "evalution_enginekit": "packages/evalution-enginekit/src/evalution_enginekit/__init__.py",
}
"""The modules of the Python reference; what `__all__` names is public."""
MODULES = {"evalution": {"engines", "suites"}}
"""Names that are modules; `suites` has its own page."""
FENCE = re.compile(r"^```(\w+) (\S.*)$")
BLOCK = re.compile(r"[-*] |\d+\. |\|")
PARAGRAPH = re.compile(r"(?![-*] |\d+\. |\|)\S")


def write_pages(folder: Path) -> None:
    """Write all pages of the site below an empty folder."""
    for pattern in COPIED:
        for source in ROOT.glob(pattern):
            target = folder / source.relative_to(ROOT)
            if source.is_dir():
                changelogs = shutil.ignore_patterns("CHANGELOG.md")  # as of all packages
                shutil.copytree(source, target, ignore=changelogs)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
    for page in folder.rglob("*.md"):
        page.write_text(adapt_page(page.read_text(encoding="utf-8")), encoding="utf-8")
    decisions = folder / "docs" / "decisions"
    index = "".join(list_decisions(decisions))
    (decisions / "README.md").write_text(f"# Design decisions\n\n{index}", encoding="utf-8")
    (folder / "api").mkdir()
    for module, source in REFERENCE.items():
        text = describe_module(module, (ROOT / source).read_text(encoding="utf-8"))
        (folder / "api" / f"{module}.md").write_text(text, encoding="utf-8")


def adapt_page(text: str) -> str:
    """Return a page as Python-Markdown reads it, from one as GitHub does.

    Fences have `title="…"` alone, and lists and tables follow a blank line.
    """
    lines: list[str] = []
    is_code = False
    before = ""
    for line in text.splitlines():
        if line.startswith("```"):
            is_code = not is_code
            line = FENCE.sub(quote_title, line)
        elif not is_code and BLOCK.match(line) and PARAGRAPH.match(before):
            lines.append("")
        lines.append(line)
        before = line
    return "\n".join(lines) + "\n"


def quote_title(fence: re.Match[str]) -> str:
    title = re.search(r"title=(\S+)", fence[2])
    return f'```{fence[1]} title="{title[1]}"' if title else f"```{fence[1]}"


def list_decisions(folder: Path) -> Iterator[str]:
    for page in sorted(folder.glob("0*.md")):
        heading = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        yield f"- [{heading}]({page.name})\n"


def describe_module(module: str, source: str) -> str:
    """Return the page of one module: its docstring, and a directive for each public name."""
    tree = ast.parse(source)
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and [target.id for target in node.targets if isinstance(target, ast.Name)] == ["__all__"]
    )
    named = [name for name in names if name not in MODULES.get(module, ())]
    directives = "".join(f"\n::: {module}.{name}\n" for name in named)
    return f"# {module}\n\n{ast.get_docstring(tree)}\n{directives}"


def build_site(version: str | None = None) -> int:
    """Build the site strictly; return the exit status."""
    pages, site = BUILD / "pages", BUILD / "site"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.rmtree(site / version if version else site, ignore_errors=True)
    write_pages(pages)
    settings = (ROOT / "tools" / "docs_site.toml").read_text(encoding="utf-8")
    if version:
        settings = settings.replace('site_dir = "site"', f'site_dir = "site/{version}"')
        settings += '\n[project.extra.version]\nprovider = "mike"\n'
    (BUILD / "zensical.toml").write_text(settings, encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    status = subprocess.call(command, cwd=BUILD)
    if version and status == 0:
        list_versions(site)
    return status


def list_versions(site: Path) -> None:
    """Write the list that the selector reads, newest first, and an entrance to the newest."""

    def order(version: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", version)]

    versions = sorted((page.parent.name for page in site.glob("*/404.html")), key=order)[::-1]
    listed = [{"version": name, "title": name, "aliases": []} for name in versions]
    (site / "versions.json").write_text(json.dumps(listed), encoding="utf-8")
    entrance = f'<!doctype html><meta http-equiv="refresh" content="0; url={versions[0]}/">\n'
    (site / "index.html").write_text(entrance, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", help="build it as this version, beside the others")
    return build_site(parser.parse_args().version)


if __name__ == "__main__":
    sys.exit(main())
