"""Hold the wording of the source: `uv run tools/check.py words`.

A docstring begins with a verb or a noun, so that its first sentence states what a thing does or
is; a clause such as "What a session holds" does not. Some words are avoided in favour of plain
ones: print, return, raise, report, contain or state.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from lint_imports import source_folders

ROOT = Path(__file__).parents[1]
CLAUSE = re.compile(r"(What|Whether|How|Why|Which|Who|Whose|Where|When)\b[^?]*$", re.DOTALL)
AVOIDED = re.compile(r"\b(tells?|told|telling|anew|besides|for ever|lets go|in the making)\b", re.I)


def read_docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every docstring of a module with its line, attribute docstrings included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
            case _:
                pass


def find_faults(path: Path) -> Iterator[str]:
    """Yield a line for each docstring that begins with a clause and each avoided word."""
    for line, text in read_docstrings(path):
        first = re.split(r"\n\s*\n|(?<=[.:;])\s", text.strip(), maxsplit=1)[0]
        if CLAUSE.match(first):
            yield f"{path.relative_to(ROOT)}:{line} begins with a clause: {first.splitlines()[0]}"
    for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if found := AVOIDED.search(text):
            yield f"{path.relative_to(ROOT)}:{line} says {found[0]!r}: {text.strip()}"


def main() -> int:
    folders = [folder / package for package, folder in source_folders(ROOT).items()]
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    # The tiny model's questions and this file hold such words on purpose.
    tools = sorted((ROOT / "tools").rglob("*.py"))
    paths += [path for path in tools if path.name not in ("facts.py", "words.py")]
    faults = [fault for path in paths for fault in find_faults(path)]
    print("\n".join(faults) or "every docstring begins with a verb or a noun")
    if faults:
        print(f"{len(faults)} places")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
