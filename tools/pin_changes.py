"""Print which pins differ between two folders of hashed requirement files, as a table in Markdown.

    uv run tools/pin_changes.py OLD NEW

`tools/envs/compile` prints it at its end; it is the text of the weekly workflow's pull request.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PIN = re.compile(r"^([a-z0-9.-]+)==(\S+)(.*(?:\n +--hash=.*)*)", re.MULTILINE)
HASH = re.compile(r"--hash=(\S+)")
ABSENT = "–"


def read_pins(file: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Return the version and the hashes of each package; empty if there is no such file."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return {
        name: (version, frozenset(HASH.findall(rest))) for name, version, rest in PIN.findall(text)
    }


def compare(old: Path, new: Path) -> dict[tuple[str, str, str], list[str]]:
    """Return package, old and new version of each change, with the environments that it is in.

    The same version with other hashes is a change: an archive was added to it, or taken away.
    """
    names = {file.name for folder in (old, new) for file in folder.glob("*.txt")}
    found: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for name in sorted(names):
        before, after = read_pins(old / name), read_pins(new / name)
        for package in sorted(before.keys() | after.keys()):
            was, hashes = before.get(package, (ABSENT, frozenset[str]()))
            now, others = after.get(package, (ABSENT, frozenset[str]()))
            if was != now:
                found[package, was, now].append(name.removesuffix(".txt"))
            elif hashes != others:
                found[package, was, "the same, other archives"].append(name.removesuffix(".txt"))
    return dict(sorted(found.items()))


def make_rows(changes: dict[tuple[str, str, str], list[str]]) -> Iterator[str]:
    if not changes:
        yield "No pin changed."
        return
    yield "| package | old | new | environments |"
    yield "|---|---|---|---|"
    for (package, was, now), environments in changes.items():
        yield f"| {package} | {was} | {now} | {', '.join(environments)} |"


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: pin_changes.py OLD NEW", file=sys.stderr)
        return 2
    print("\n".join(make_rows(compare(*map(Path, arguments)))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
