"""Measure the source tree and hold it to its bounds: `uv run tools/check.py house`.

Counts modules and lines, lists modules that are too long, small modules with a single importer and
no reason of their own, import circles inside a package (imports for type checking count), and
functions that are too long. Then it runs what is installed: counts the names of core's front door,
the modules on the way of a row, and the properties of a spec's schema that nobody described. The
bounds are those of docs/decisions/0003-size-ceilings.md.
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lint_imports import source_folders

ROOT = Path(__file__).parents[1]
CORE = "evalution_core"

MODULES, LINES = 441, 83_600
PACKAGE_MODULES = {"evalution": 186, "evalution_enginekit": 33}
MODULE_CEILING, MODULE_FLOOR, FUNCTION_CEILING, CORE_CEILING = 500, 40, 50, 1_230
CORE_NAMES, ROW_MODULES = 32, 25
REASON = "own module"
"""A module below the floor with one importer says in its docstring why it is its own module."""


@dataclass(frozen=True)
class Module:
    name: str
    package: str
    path: Path

    @cached_property
    def source(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @property
    def lines(self) -> int:
        return len(self.source.splitlines())

    @property
    def is_entrance(self) -> bool:
        return self.path.stem in ("__init__", "__main__")

    @property
    def reason(self) -> bool:
        return REASON in (ast.get_docstring(self.tree) or "")


def read_modules(root: Path) -> dict[str, Module]:
    """Return the modules of all members by their dotted names."""
    found: dict[str, Module] = {}
    for package, folder in source_folders(root).items():
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, package, path)
    return found


def find_imports(module: Module, known: Mapping[str, Module]) -> set[str]:
    """Return the known modules that `module` imports, inside functions and for types too."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(part if part in known else node.module for part in parts)
    return (found & known.keys()) - {module.name}


def find_circles(imports: Mapping[str, set[str]], known: Mapping[str, Module]) -> list[list[str]]:
    """Return the strongly connected groups of two or more modules within one package (Tarjan)."""
    inside = {
        name: {
            other
            for other in others
            if known[other].package == known[name].package and not known[other].is_entrance
        }
        for name, others in imports.items()
        if not known[name].is_entrance
    }
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(inside[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            group, stack[at:] = stack[at:], []
            if len(group) > 1:
                circles.append(sorted(group))

    for name in inside:
        if name not in index:
            visit(name)
    return circles


def find_small(modules: Iterable[Module], imports: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield the modules below the floor that one module imports and that state no reason."""
    importers: dict[str, list[str]] = {}
    for name, others in imports.items():
        for other in others:
            importers.setdefault(other, []).append(name)
    for module in modules:
        users = importers.get(module.name, [])
        small = module.lines < MODULE_FLOOR and not module.is_entrance
        if small and len(users) == 1 and not module.reason:
            yield f"{module.name}: {module.lines} lines, only imported by {users[0]}"


def find_long_functions(modules: Iterable[Module]) -> Iterator[str]:
    """Yield the functions above the ceiling, with their lines."""
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_CEILING:
                    yield f"{module.name}.{node.name}: {lines} lines"


def count_code_lines(source: str) -> int:
    """Count lines of code: no blank line, comment, docstring, import or `__all__`."""
    layout = {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT),
        *(tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER),
    }
    kept: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in layout:
            kept.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Import() | ast.ImportFrom():
                kept.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                kept.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case _:
                pass
    return len(kept)


def count_properties(shape: Any) -> tuple[int, int]:
    """Return how many properties a schema has, and how many of them lack a description.

    Conditions and defaults describe nothing.
    """
    if isinstance(shape, list):
        counts = [count_properties(member) for member in shape]
    elif isinstance(shape, dict):
        counts = [count_properties(shape[key]) for key in shape.keys() - {"if", "default"}]
        options = shape.get("properties", {}).values()
        lacking = sum(option is not True and not option.get("description") for option in options)
        counts.append((len(options), lacking))
    else:
        return 0, 0
    return sum(count for count, _ in counts), sum(lacking for _, lacking in counts)


def check_installed() -> Iterator[str]:
    """Print what only running shows, and yield where it is out of bounds."""
    import evalution_core

    names = len(evalution_core.__all__)
    print(f"names of core's front door: {names} of {CORE_NAMES}")
    if names > CORE_NAMES:
        yield f"core exports {names} names, the bound is {CORE_NAMES}"
    schema = subprocess.run(
        [sys.executable, "-m", "evalution", "schema"], capture_output=True, check=True
    )
    properties, lacking = count_properties(json.loads(schema.stdout))
    print(f"properties of a spec's schema: {properties}, without a description: {lacking}")
    if lacking:
        yield f"{lacking} properties of a spec's schema have no description"
    path = ROOT / "tools" / "bench" / "request_path.py"
    way = subprocess.run(
        [sys.executable, str(path), "--most", str(ROW_MODULES)],
        capture_output=True,
        text=True,
        check=False,
    )
    print(f"way of a row (bound {ROW_MODULES} modules):\n{way.stdout.rstrip()}")
    if way.returncode:
        yield f"a row's way is above {ROW_MODULES} modules{way.stderr and f': {way.stderr}'}"


def main() -> int:
    known = read_modules(ROOT)
    imports = {name: find_imports(module, known) for name, module in known.items()}
    modules = list(known.values())
    lines = sum(module.lines for module in modules)
    core = sum(count_code_lines(m.source) for m in modules if m.package == CORE)
    print(f"{'package':28}{'modules':>8}{'lines':>8}")
    problems: list[str] = []
    for package in sorted({module.package for module in modules}):
        own = [module for module in modules if module.package == package]
        print(f"{package:28}{len(own):8}{sum(module.lines for module in own):8}")
        if len(own) > PACKAGE_MODULES.get(package, len(own)):
            problems.append(f"{package} has more than {PACKAGE_MODULES[package]} modules")
    print(f"{'all (bounds ' + f'{MODULES}, {LINES})':28}{len(modules):8}{lines:8}")
    print(f"code lines of core: {core} of {CORE_CEILING}")
    if len(modules) > MODULES:
        problems.append(f"{len(modules)} modules, the bound is {MODULES}")
    if lines > LINES:
        problems.append(f"{lines} lines, the bound is {LINES}")
    if core > CORE_CEILING:
        problems.append(f"core has {core} lines of code, the bound is {CORE_CEILING}")
    problems += [
        f"{m.name}: {m.lines} lines, above {MODULE_CEILING}"
        for m in modules
        if m.lines > MODULE_CEILING
    ]
    problems += find_small(modules, imports)
    problems += find_long_functions(modules)
    circles = find_circles(imports, known)
    problems += [f"import circle: {' <-> '.join(circle)}" for circle in circles]
    problems += check_installed()
    print("\n".join(problems) or "all bounds hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
