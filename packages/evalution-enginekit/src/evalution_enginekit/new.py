"""Write the package of a new engine: `python -m evalution_enginekit.new acme`.

The folder is a copy of `engine_template/`, itself an engine named Acme whose runtime is a fake in
its tests: the copy's conformance tests pass before a line of it is changed.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
import tomllib
from importlib.metadata import distributions
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import StringIO
from itertools import groupby
from pathlib import Path, PurePosixPath
from token import NAME
from tokenize import generate_tokens

from evalution_core import ConfigurationError

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_CLASS = re.compile(r"[A-Z][A-Za-z0-9_]*")
_OURS = "from evalution_"
_ALONE = """
[dependency-groups]
dev = ["evalution-conformance>=0.1,<0.2", "pytest>=8.4"]
"""
_IN_WORKSPACE = """
[tool.uv.sources]
evalution-core = { workspace = true }
evalution-enginekit = { workspace = true }

# CI makes this environment from uv.lock and runs this folder's tests in it.
[[tool.evalution.environments]]
name = "acme"
"""


def write_engine(name: str, into: Path, class_name: str | None = None) -> list[Path]:
    """Write the folder `evalution-<name>` and return its files.

    Args:
        name: such as `llama-cpp`; the distribution is named after it.
        into: the folder that gets the new one.
        class_name: the engine's class; by default `LlamaCpp` for `llama-cpp`.

    Raises:
        ConfigurationError: a name can't be one of a distribution, a module or a class, or the
            folder is there already; or one is taken by Python, or by the engine's own code.
    """
    name = name.removeprefix("evalution-")
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} can't name an engine; use lower-case letters, digits and hyphens, "
            "such as llama-cpp"
        )
    title = class_name or "".join(part[0].upper() + part[1:] for part in name.split("-"))
    if not _CLASS.fullmatch(title) or keyword.iskeyword(title):
        raise ConfigurationError(
            f"{title!r} can't name the engine's class; use letters and digits after a capital, "
            "such as LlamaCpp"
        )
    folder = into / f"evalution-{name}"
    if any(distributions(name=folder.name)):
        raise ConfigurationError(
            f"the package {folder.name} is installed here, and another one of that name would take "
            "its place; choose another name"
        )
    if folder.exists():
        raise ConfigurationError(f"{folder} exists already; choose another name, or another --into")
    template = _read_template(files("evalution_enginekit").joinpath("engine_template"))
    _check_names(template, name, title)
    sources = _IN_WORKSPACE if find_workspace(folder) else _ALONE
    written: list[Path] = []
    for path, text in template:
        if path.name == "pyproject.toml":
            text += sources
        file = folder / _rename(str(path), name, title)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_sort_imports(_rename(text, name, title)), encoding="utf-8")
        written.append(file)
    return written


def find_workspace(folder: Path) -> Path | None:
    """Return the uv workspace that `folder` would be a member of, if evalution-core is one too."""
    folder = folder.resolve()
    for root in folder.parents:
        try:
            project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        except OSError:
            continue
        patterns: list[str] = (
            project.get("tool", {}).get("uv", {}).get("workspace", {}).get("members", [])
        )
        inside = PurePosixPath(folder.relative_to(root).as_posix())
        is_member = any(inside.match(pattern) for pattern in patterns)
        if is_member and (folder.parent / "evalution-core" / "pyproject.toml").is_file():
            return root
    return None


def _read_template(folder: Traversable, at: str = ".") -> list[tuple[PurePosixPath, str]]:
    """Return the template's files, each with its path in the new folder."""
    found: list[tuple[PurePosixPath, str]] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        path = f"{at}/{entry.name}"
        if entry.is_dir():
            found += _read_template(entry, path)
        elif entry.name.endswith(".in"):
            found.append((PurePosixPath(path.removesuffix(".in")), entry.read_text("utf-8")))
    return found


def _check_names(template: list[tuple[PurePosixPath, str]], name: str, title: str) -> None:
    """Refuse names that mean something else in the template's code."""
    code = [text for path, text in template if path.suffix == ".py"]
    words = {
        token.string
        for text in code
        for token in generate_tokens(StringIO(text).readline)
        if token.type == NAME
    }
    own = {word for word in words if "acme" in word.lower()}
    for word in sorted(own):
        renamed = _rename(word, name, title)
        if renamed in words - own or keyword.iskeyword(renamed):
            asked = f"the class {title!r}" if "Acme" in word else f"an engine named {name!r}"
            raise ConfigurationError(
                f"{asked} would be {renamed} in its code, which means something else there; "
                "choose another name"
            )


def _rename(text: str, name: str, title: str) -> str:
    text = text.replace("evalution-acme", f"evalution-{name}").replace("Acme", title)
    return text.replace('"acme"', f'"{name}"').replace("acme", name.replace("-", "_"))


def _sort_imports(text: str) -> str:
    """Put adjacent imports of this project in order, which depends on the engine's name."""
    runs = groupby(text.splitlines(keepends=True), lambda line: line.startswith(_OURS))
    return "".join(line for ours, lines in runs for line in (sorted(lines) if ours else lines))


def _list_steps(folder: Path) -> list[str]:
    root = find_workspace(folder)
    if root is None:
        return [
            f"cd {folder}",
            "pip install -e . evalution-conformance pytest   # in a virtual environment",
            "pytest                                          # with uv: uv run pytest",
        ]
    inside = folder.resolve().relative_to(root).as_posix()
    return [
        f"uv lock && uv sync --inexact --package {folder.name}",
        f"uv run --no-sync pytest {inside}",
    ]


def main(arguments: list[str] | None = None) -> int:
    """Write what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m evalution_enginekit.new",
        description="Write the package of a new engine, with tests that pass.",
    )
    parser.add_argument("name", help="such as acme, or llama-cpp")
    parser.add_argument(
        "--class", dest="class_name", metavar="CLASS", help="the engine's class [LlamaCpp]"
    )
    parser.add_argument(
        "--into", type=Path, default=Path(), help="the folder that gets it [this one]"
    )
    chosen = parser.parse_args(arguments)
    try:
        written = write_engine(chosen.name, chosen.into, chosen.class_name)
    except (ConfigurationError, OSError) as error:
        print(f"new: {error}", file=sys.stderr)
        return 2
    for file in written:
        print(file)
    folder = written[0].parent
    while folder.parent != chosen.into:
        folder = folder.parent
    print("next:", *_list_steps(folder), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
