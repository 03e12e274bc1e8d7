"""What the README and the guides say is run as written.

Blocks of a page are run from top to bottom in one empty folder beside a copy of `docs/`, and this
environment under another name, `.venv-other`:

- a block with `title=FILE` in its fence is written to that file (`title=output` is what the Python
  block before it prints);
- `python` is run in a process of its own, as commands are: programs of this environment;
- `console` holds commands after `$ ` and what they print; `…` stands for anything, blanks don't
  count, and `exit=N` in the fence is the exit status of the last command;
- `yaml`, `toml` and `jsonl` without a title have to parse.

A block is left out by `<!-- not run: the reason -->` on the line before it.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "packages").glob("*/README.md")),
]

Programs = Callable[..., CompletedProcess[str]]

FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_OUT = re.compile(r"<!-- not run: (?P<reason>.+) -->\n$")
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    body: str
    options: dict[str, str] = field(default_factory=dict[str, str])
    left_out: str | None = None


def blocks_of(text: str) -> Iterator[Block]:
    for match in FENCE.finditer(text):
        language, *rest = match["info"].split() or [""]
        options = dict(option.split("=", 1) for option in rest)
        reason = LEFT_OUT.search(text[: match.start()])
        line = text.count("\n", 0, match.start()) + 1
        yield Block(line, language, match["body"], options, reason["reason"] if reason else None)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


class Folder:
    """Where the blocks of one page run; commands are those of this environment."""

    def __init__(self, path: Path, run_python: Programs):
        self.path = path
        self._run_python = run_python
        shutil.copytree(ROOT / "docs", path / "docs")
        (path / ".venv-other").symlink_to(sys.prefix)
        commands = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        self._environment = {**os.environ, "PATH": os.pathsep.join(commands), "COLUMNS": "120"}
        self._printed = ""

    def run(self, block: Block) -> None:
        title = block.options.get("title")
        if title == "output":
            assert self._printed.splitlines() == block.body.splitlines()
        elif title is not None:
            (self.path / title).write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            self._printed = self._call(["python", "-c", block.body], 0)
        elif block.language == "console":
            self._run_commands(block)
        else:
            PARSERS[block.language](block.body)

    def _run_commands(self, block: Block) -> None:
        for part in re.split(r"^\$ ", block.body, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            is_last = block.body.endswith(part)
            words = shlex.split(command.removeprefix("uv run "))
            printed = self._call(words, int(block.options.get("exit", 0)) if is_last else 0)
            assert re.fullmatch(pattern_of(shown), squeezed(printed), re.DOTALL), printed

    def _call(self, command: list[str], status: int) -> str:
        name, *arguments = command
        if name != "python":
            script = shutil.which(name, path=self._environment["PATH"])
            assert script is not None, name
            arguments = [script, *arguments]
        done = self._run_python(arguments, self.path, self._environment)
        assert done.returncode == status, f"{command}\n{done.stdout}{done.stderr}"
        # Progress goes to the error stream; a page shows it only where a command fails.
        return done.stdout if status == 0 else done.stdout + done.stderr


def parse_lines(text: str) -> None:
    for line in text.splitlines():
        json.loads(line)


PARSERS = {
    "yaml": yaml.safe_load,
    "toml": tomllib.loads,
    "jsonl": parse_lines,
    "json": json.loads,
    "text": str,
    "": str,
}


def squeezed(text: str) -> str:
    """Return `text` with each run of blanks as one, and without rules of tables."""
    return " ".join(re.sub("[─]+", " ", text).split())


def pattern_of(shown: str) -> str:
    """Return what a page shows of an output as a pattern; all of it is free where it shows none."""
    if not shown.strip():
        return ".*"
    parts = [re.escape(squeezed(part)) for part in shown.split("…")]
    return r"\s*.*?\s*".join(parts)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_does_what_it_says(page: Path, tmp_path: Path, run_python: Programs) -> None:
    folder = Folder(tmp_path, run_python)
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if block.left_out is not None:
            continue
        try:
            folder.run(block)
        except Exception as error:
            error.add_note(f"{name_of(page)}, the block in line {block.line}")
            raise


def test_links_of_the_pages_resolve() -> None:
    headings = re.compile(r"^#+ (.+)$", re.MULTILINE)
    broken: list[str] = []
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for link in LINK.finditer(text):
            target, _, anchor = link["target"].partition("#")
            if "://" in target:
                continue
            file = (page.parent / target).resolve() if target else page
            found = headings.findall(file.read_text(encoding="utf-8")) if anchor else []
            anchors = {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in found}
            if not file.exists() or (anchor and anchor not in anchors):
                broken.append(f"{name_of(page)}: {link['target']}")
    assert not broken


def test_definitions_that_the_map_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = {
        path.relative_to(source).as_posix(): path
        for source in (ROOT / "packages").glob("*/src")
        for path in source.rglob("*.py")
    }
    found = re.findall(r"`(evalution\w*/[\w/]+\.py)(?:::([\w.]+))?`", text)
    assert len(found) > 40
    for file, name in found:
        tree = ast.parse(files[file].read_text("utf-8"))
        defined = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert not name or set(name.split(".")) <= defined, f"{file}::{name}"


def test_readme_and_pipeline_run_the_same_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pipeline = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "\npip install uv\n" in pipeline
    stages = (ROOT / "tools" / "ci.py").read_text(encoding="utf-8")
    for command in (
        "pip install uv",
        "uv run evalution run docs/examples/quickstart.yaml",
        "uv run pytest",
    ):
        assert f"$ {command}\n" in readme
        words = ", ".join(f'"{word}"' for word in command.split())
        assert command == "pip install uv" or f"[{words}]" in stages


def test_readme_lists_every_package_with_its_tested_versions() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(evalution[a-z-]*)` \|.*\| ([^|]+) \|$", readme, re.MULTILINE)
    assert {name for name, _ in rows} == {file.name for file in (ROOT / "packages").iterdir()}
    pinned = "".join(file.read_text("utf-8") for file in (ROOT / "tools" / "envs").glob("*.txt"))
    for name, told in rows:
        for version in re.findall(r"\d+\.[\d.]*\d", told):
            assert re.search(rf"=={re.escape(version)}\b", pinned), f"{name}: {version}"


def test_engine_guide_shows_the_examples_unchanged() -> None:
    guide = (ROOT / "docs" / "engine-authors.md").read_text(encoding="utf-8")
    shown = [block.body for block in blocks_of(guide)]
    examples = sorted((ROOT / "docs" / "examples").glob("*_engine.py"))
    assert [example.name for example in examples] == ["my_engine.py", "token_engine.py"]
    for example in examples:
        assert example.read_text(encoding="utf-8") in shown, example.name


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        ("a  b\n", "a b\n", True),
        ("a b\n", "a c\n", False),
        ("a\n…\nz\n", "a\nb\nc\nz\n", True),
        ("results: runs/…-tiny\n", "results: runs/2026-tiny\n", True),
        ("", "anything\n", True),
        ("a\n", "a\nb\n", False),
    ],
)
def test_output_is_compared_with_its_block(shown: str, printed: str, fits: bool) -> None:
    assert bool(re.fullmatch(pattern_of(shown), squeezed(printed), re.DOTALL)) is fits


def test_block_is_read_with_its_options_and_its_reason() -> None:
    text = (
        "# Page\n\n<!-- not run: why -->\n```yaml title=a.yaml exit=2\nb: 1\n```\n\n```\nc\n```\n"
    )
    first, second = blocks_of(text)
    assert first == Block(4, "yaml", "b: 1\n", {"title": "a.yaml", "exit": "2"}, "why")
    assert second == Block(8, "", "c\n")
