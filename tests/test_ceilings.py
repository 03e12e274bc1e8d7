"""Sizes that keep the code readable: of a file, of a function, and of the contract in all.

A line above the target needs a reason here; the ceilings have no exceptions (decision 0003).
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[1] / "packages"
FILES = sorted(PACKAGES.glob("*/src/**/*.py"))
CORE = "evalution-core"

FILE_TARGET, FILE_CEILING, FUNCTION_CEILING, CORE_CEILING = 300, 500, 50, 700

# Files above the target of 300 lines, by import path, and why.
LONGER_FILES: dict[str, str] = {}

SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGES).as_posix().partition("/src/")[2]


def code_lines(source: str) -> int:
    """Lines that hold code: no blank line, comment, docstring, import or `__all__`."""
    tree = ast.parse(source)
    kept: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SKIPPED:
            kept.update(range(token.start[0], token.end[0] + 1))
    for node in uncounted(tree):
        kept.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(kept)


def uncounted(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that are a string alone, imports, and the list of what a module exports."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                yield node
            case ast.Import() | ast.ImportFrom():
                yield node
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                yield node
            case _:
                pass


def functions(file: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_code_lines_leave_out_what_is_not_code() -> None:
    source = '"""Module."""\n\nimport os\n\n__all__ = [\n    "a",\n]\n\n\ndef a() -> str:\n'
    source += '    """What it gives."""\n    # why\n    return """two\nlines"""\n'
    assert code_lines(source) == 3


def test_core_stays_within_its_ceiling() -> None:
    counted = {
        name_of(file): code_lines(file.read_text(encoding="utf-8"))
        for file in FILES
        if file.relative_to(PACKAGES).parts[0] == CORE
    }
    assert counted
    assert sum(counted.values()) <= CORE_CEILING, counted


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_file_is_short_or_says_why_not(file: Path) -> None:
    lines = len(file.read_text(encoding="utf-8").splitlines())
    assert lines <= FILE_CEILING
    if name_of(file) in LONGER_FILES:
        assert lines > FILE_TARGET, "it is short now: take it off the list"
    else:
        assert lines <= FILE_TARGET


def test_every_exception_names_a_file_that_exists() -> None:
    assert set(LONGER_FILES) <= {name_of(file) for file in FILES}


def test_functions_are_short() -> None:
    longer = {
        f"{name_of(file)}:{name}": lines
        for file in FILES
        for name, lines in functions(file)
        if lines > FUNCTION_CEILING
    }
    assert longer == {}
