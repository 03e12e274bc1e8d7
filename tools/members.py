"""Read what the members of the workspace declare for its tools in their own `pyproject.toml`.

[tool.evalution]
types = "torch"                      # the environment in which pyright checks this member

[[tool.evalution.environments]]      # one for each environment that runs tests of this member
name = "torch"                       # tools/envs/torch.txt, else what uv.lock has for the member
members = ["evalution-transformers"] # further members that are installed
requires = ["transformers"]          # distributions without which the run fails
tests = ["packages/evalution-vllm"]  # the member's own folder if left out
arguments = ["-k", "not Float64"]    # for pytest
system = ["g++"]                     # system packages that the build needs
variables = {CMAKE_ARGS = "-DX=ON"}   # for the build
torch = true                         # a CPU build of torch is installed
minutes = 3                          # of its tests on two cores: the shortest runs first
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass
class Environment:
    """An environment, with everything that the members which use it declare."""

    name: str
    members: list[str] = field(default_factory=list[str])
    requires: list[str] = field(default_factory=list[str])
    tests: list[str] = field(default_factory=list[str])
    arguments: list[str] = field(default_factory=list[str])
    system: list[str] = field(default_factory=list[str])
    variables: dict[str, str] = field(default_factory=dict[str, str])
    torch: bool = False
    minutes: float = 1.0

    @property
    def folder(self) -> Path:
        return ROOT / f".venv-{self.name}"

    @property
    def requirements(self) -> Path:
        """The hashed requirements; where there are none, uv.lock gives the environment."""
        return ROOT / "tools" / "envs" / f"{self.name}.txt"

    def add(self, member: str, declared: Mapping[str, Any]) -> None:
        """Join what one member declares; it installs itself and tests its own folder by default."""
        self.members += [member, *declared.get("members", [])]
        self.requires += declared.get("requires", [])
        self.tests += declared.get("tests", [f"packages/{member}"])
        self.arguments += declared.get("arguments", [])
        self.system += declared.get("system", [])
        self.variables |= declared.get("variables", {})
        self.torch = self.torch or declared.get("torch", False)
        self.minutes = max(self.minutes, declared.get("minutes", 1.0))


def light_members() -> list[str]:
    """Return the members that every environment holds."""
    return read_declared(ROOT / "pyproject.toml")["light"]


def read_environments() -> dict[str, Environment]:
    """Return the environments that members declare, the shortest first."""
    found: dict[str, Environment] = {}
    for path in sorted(ROOT.glob("packages/*/pyproject.toml")):
        for entry in read_declared(path).get("environments", []):
            name = entry["name"]
            found.setdefault(name, Environment(name)).add(path.parent.name, entry)
    for environment in found.values():
        environment.members = unique([*light_members(), *environment.members])
        environment.tests = unique(environment.tests)
    return dict(sorted(found.items(), key=lambda pair: pair[1].minutes))


def unique(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))


def read_declared(path: Path) -> dict[str, Any]:
    """Return the table `[tool.evalution]` of a `pyproject.toml`, empty if it has none."""
    declared = tomllib.loads(path.read_text(encoding="utf-8"))
    return declared.get("tool", {}).get("evalution", {})


def typed_members() -> dict[str, list[str]]:
    """Return the members whose types need an environment of their own, by its name."""
    found: dict[str, list[str]] = {}
    for path in sorted(ROOT.glob("packages/*/pyproject.toml")):
        if name := read_declared(path).get("types"):
            found.setdefault(name, []).append(path.parent.name)
    return found


def pyright_settings(environment: str | None = None) -> str:
    """Return pyright's settings as JSON, for the light environment or for members of another.

    They belong in a file at the root, to which the paths in them are relative.
    """
    root = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pyright"]
    typed = typed_members()
    if environment is None:
        include = root["include"]
        exclude = [f"packages/{name}" for names in typed.values() for name in names]
    else:
        include = [f"packages/{name}" for name in typed[environment]]
        exclude = []
    exclude = [*root["exclude"], *exclude]
    paths = {"include": include, "exclude": exclude}
    return json.dumps({**root, **paths, "reportMissingTypeStubs": "none"}, indent=2)
