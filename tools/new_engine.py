"""Write the folder of a new engine: `uv run tools/new_engine.py acme`.

The folder is a copy of `tools/engine_template/`, itself an engine named Acme whose runtime is a
fake in its tests: the copy's conformance tests pass before a line of it is changed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEMPLATE = ROOT / "tools" / "engine_template"
PACKAGES = ROOT / "packages"
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def class_name(name: str) -> str:
    """Return the public class of an engine: `LlamaCpp` for `llama-cpp`."""
    return "".join(part[0].upper() + part[1:] for part in name.split("-"))


def renamed(text: str, name: str) -> str:
    """Return `text` of the template with the engine's own names."""
    text = text.replace("evalution-acme", f"evalution-{name}")
    return text.replace("Acme", class_name(name)).replace("acme", name.replace("-", "_"))


def write_engine(name: str, packages: Path) -> list[Path]:
    """Write `evalution-<name>` under `packages` and return its files.

    Raises:
        ValueError: the name can't be one of a distribution and of a module.
        FileExistsError: the folder is there already.
    """
    name = name.removeprefix("evalution-")
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} can't name an engine; use lower-case letters, digits and hyphens, "
            "such as llama-cpp"
        )
    folder = packages / f"evalution-{name}"
    if folder.exists():
        raise FileExistsError(f"{folder} exists already; choose another name")
    written: list[Path] = []
    for source in sorted(path for path in TEMPLATE.rglob("*") if path.is_file()):
        if source.suffix == ".pyc":
            continue
        file = folder / renamed(source.relative_to(TEMPLATE).as_posix(), name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(renamed(source.read_text(encoding="utf-8"), name), encoding="utf-8")
        written.append(file)
    lay_out(folder)
    return written


def lay_out(folder: Path) -> None:
    """Put imports and lines in order: their length and place depend on the name."""
    ruff = [sys.executable, "-m", "ruff"]
    settings = ["--quiet", "--no-cache", "--config", str(ROOT / "pyproject.toml"), str(folder)]
    for command in (["check", "--select", "I", "--fix"], ["format"]):
        subprocess.run([*ruff, *command, *settings], check=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the folder of a new engine.")
    parser.add_argument("name", help="such as acme, or llama-cpp")
    parser.add_argument("--packages", type=Path, default=PACKAGES, help="the folder to write in")
    chosen = parser.parse_args(arguments)
    try:
        files = write_engine(chosen.name, chosen.packages)
    except (ValueError, FileExistsError) as error:
        print(f"new_engine: {error}", file=sys.stderr)
        return 2
    for file in files:
        print(file)
    distribution = files[0].relative_to(chosen.packages).parts[0]
    print(f"next: uv lock && uv sync --inexact --package {distribution}")
    print(f"      uv run --no-sync pytest packages/{distribution}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
