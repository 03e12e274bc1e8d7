"""Claims of a package about its runtime: the Protocols of its `upstream.py`, and its fakes.

Such a module ends with the literal `UPSTREAM`, from a class or function of its own to the qualified
name that it stands for; `OPTION_FIELDS`, where it is, maps the qualified name of a class of options
to the fields that the package hands on by name.
"""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import griffe

from upstream_api.source import Release, Source, place_of


@dataclass(frozen=True, slots=True)
class Claim:
    """`said` stands for `upstream`; without `said`, the claim is that a field `member` exists."""

    upstream: str
    where: str
    said: griffe.Object | None = None
    member: str | None = None


@dataclass(frozen=True, slots=True)
class Claims:
    """One module's claims, and the source to read them in."""

    source: Source
    claims: tuple[Claim, ...]


def claims_of(package: Path) -> Iterator[Claims]:
    """Of `packages/<member>`: its `upstream.py`, and `tests/fake_*.py` that name an upstream.

    Raises:
        ValueError: a module names a class of its own that isn't there.
    """
    for file in (*package.glob("src/*/upstream.py"), *package.glob("tests/fake_*.py")):
        source = Source(file.parent, package.name)
        module = source.find(file.stem)
        assert isinstance(module, griffe.Module)
        if claims := tuple(_claims(module, file, source)):
            yield Claims(source, claims)


def bounds_of(package: Path, cache: Path) -> list[Source]:
    """The sources that `[tool.evalution] upstream` of its pyproject.toml lists.

    An entry is a release, `vllm==0.33.0`, or a folder of the package with recorded signatures.
    """
    text = (package / "pyproject.toml").read_text(encoding="utf-8")
    listed: list[str] = tomllib.loads(text).get("tool", {}).get("evalution", {}).get("upstream", [])
    return [
        Release(entry, cache).source if "==" in entry else Source(package / entry, entry)
        for entry in listed
    ]


def _claims(module: griffe.Module, file: Path, source: Source) -> Iterator[Claim]:
    for name, upstream in _literal(module, "UPSTREAM").items():
        said = module.members.get(name)
        if not isinstance(said, griffe.Class | griffe.Function):
            raise ValueError(f"{file}: UPSTREAM names {name}, which is no class or function there")
        yield Claim(upstream, place_of(said, source), said)
    fields = _literal(module, "OPTION_FIELDS")
    if fields:
        first = module.members["OPTION_FIELDS"].lineno or 1
        lines = enumerate(file.read_text(encoding="utf-8").splitlines()[first - 1 :], first)
        # Where each field is named, or the whole literal where the layout gives no place.
        written = {line.strip().strip(","): number for number, line in reversed(list(lines))}
        folder = file.relative_to(source.root).as_posix()
        for upstream, names in fields.items():
            for name in names:
                where = f"{folder}:{written.get(json.dumps(name), first)}"
                yield Claim(upstream, where, member=name)


def _literal(module: griffe.Module, name: str) -> dict[str, Any]:
    found = module.members.get(name)
    if not isinstance(found, griffe.Attribute):
        return {}
    return ast.literal_eval(str(found.value))
