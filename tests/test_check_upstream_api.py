"""`tools/check_upstream_api.py` finds each way in which a runtime can drift from what is said."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[1] / "tools"

SAID = """
from typing import Any, Protocol

class Engine(Protocol):
    running: int
    _lock: Any

    def __len__(self) -> int: ...
    def add(self, request_id: str, prompt: list[int], *, priority: int = 0) -> None: ...
    def step(self) -> list[Any]: ...
    async def drain(self, timeout: float | None = None) -> None: ...

class MakesOptions(Protocol):
    def __call__(self, *, limit: int = 16, seed: int | None = ...) -> Any: ...

class MakesSettings(Protocol):
    def __call__(self, *, depth: int = 2) -> Any: ...

class Result(Protocol):
    ids: list[int]

    @property
    def finished(self) -> bool: ...

UPSTREAM = {
    "Engine": "acme.Engine",
    "MakesOptions": "acme.options.Options",
    "MakesSettings": "acme.options.Settings",
    "Result": "acme.results.Result",
}
OPTION_FIELDS = {
    "acme.options.EngineOptions": (
        "width",
        "depth",
    ),
}
"""

INIT = "from .core.engine import Engine\n"
BASE = """
class Base:
    def step(self):
        return []

    async def drain(self, timeout=None):
        pass
"""
ENGINE = """
from ..base import Base

class Engine(Base):
    def __init__(self, width):
        self.running = 0
        self._prepare()

    def _prepare(self):
        self._lock = object()

    def __len__(self):
        return 0

    def add(self, request_id, prompt, params=None, *, priority=0):
        pass
"""
OPTIONS = """
from dataclasses import dataclass, field

@dataclass
class Options:
    limit: int = 16
    seed: int | None = None

@dataclass(kw_only=True)
class Settings:
    depth: int = field(default=2)
    level: int = field(default=0, init=False)

@dataclass
class EngineOptions:
    width: int
    depth: int = 2
"""
RESULTS = """
class Result:
    def __init__(self, ids):
        self.ids = ids

    @property
    def finished(self):
        return True
"""
SOURCE = {
    "acme/__init__.py": INIT,
    "acme/core/__init__.py": "",
    "acme/base.py": BASE,
    "acme/core/engine.py": ENGINE,
    "acme/options.py": OPTIONS,
    "acme/results.py": RESULTS,
}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of one package, `evalution-acme`, whose recorded source fits what it says."""
    package = tmp_path / "packages" / "evalution-acme"
    for name, text in SOURCE.items():
        write(package / "recorded" / name, text)
    write(package / "src" / "evalution_acme" / "upstream.py", SAID)
    write(package / "pyproject.toml", '[tool.evalution]\nupstream = ["recorded"]\n')
    return package.parent


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


Check = Callable[..., tuple[int, str]]


@pytest.fixture
def check(
    packages: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Check:
    """A function that runs the tool on `packages`: its exit status, and what it prints."""
    monkeypatch.syspath_prepend(TOOLS)
    tool = importlib.import_module("check_upstream_api")

    def run(*arguments: str) -> tuple[int, str]:
        return tool.main(["--packages", str(packages), *arguments]), capsys.readouterr().out

    return run


def test_true_declaration_passes(check: Check) -> None:
    status, printed = check()
    assert printed == "evalution-acme: 6 claims held against recorded\nno difference\n"
    assert status == 0


DRIFT = {
    "a renamed parameter": (
        "acme/core/engine.py",
        "prompt, params",
        "tokens, params",
        "acme.core.engine.Engine.add: no parameter prompt",
    ),
    "a new required parameter": (
        "acme/core/engine.py",
        "params=None",
        "params",
        "acme.core.engine.Engine.add: parameter params is required",
    ),
    "another kind": (
        "acme/core/engine.py",
        "request_id, prompt, params=None, *,",
        "request_id, *, prompt, params=None,",
        "parameter prompt is keyword-only and stands elsewhere",
    ),
    "another place": (
        "acme/core/engine.py",
        "request_id, prompt",
        "prompt, request_id",
        "parameter prompt is positional or keyword and stands elsewhere",
    ),
    "another default": (
        "acme/core/engine.py",
        "priority=0",
        "priority=1",
        "default of priority is 1, not 0",
    ),
    "another default of a field": (
        "acme/options.py",
        "limit: int = 16",
        "limit: int = 32",
        "default of limit is 32, not 16",
    ),
    "a removed attribute": (
        "acme/core/engine.py",
        "self.running = 0",
        "pass",
        "acme.core.engine.Engine has no running",
    ),
    "a removed private attribute": (
        "acme/core/engine.py",
        "self._lock",
        "self._mutex",
        "acme.core.engine.Engine has no _lock",
    ),
    "a removed special method": (
        "acme/core/engine.py",
        "def __len__",
        "def __bool__",
        "acme.core.engine.Engine has no __len__",
    ),
    "a property that became a method": (
        "acme/results.py",
        "    @property\n",
        "",
        "acme.results.Result.finished is a method",
    ),
    "another default of a described field": (
        "acme/options.py",
        "field(default=2)",
        "field(default=3)",
        "default of depth is 3, not 2",
    ),
    "a field that the constructor doesn't take": (
        "acme/options.py",
        "field(default=2)",
        "field(default=2, init=False)",
        "acme.options.Settings: no parameter depth",
    ),
    "a removed inherited method": (
        "acme/base.py",
        "def step",
        "def advance",
        "acme.core.engine.Engine has no step",
    ),
    "a removed property": (
        "acme/results.py",
        "def finished",
        "def done",
        "acme.results.Result has no finished",
    ),
    "a removed option": (
        "acme/options.py",
        "    depth: int = 2",
        "    layers: int = 2",
        "acme.options.EngineOptions has no field depth",
    ),
    "a method that isn't awaited any more": (
        "acme/base.py",
        "async def drain",
        "def drain",
        "acme.base.Base.drain is not async",
    ),
    "a moved class": (
        "acme/__init__.py",
        "import Engine",
        "import Machine",
        "there is no acme.Engine",
    ),
}


@pytest.mark.parametrize("planted", DRIFT.values(), ids=DRIFT)
def test_planted_drift_is_found_with_both_places(
    packages: Path, check: Check, planted: tuple[str, str, str, str]
) -> None:
    name, old, new, expected = planted
    replace(packages / "evalution-acme" / "recorded" / name, old, new)
    status, printed = check()
    assert status == 1
    found = next(line for line in printed.splitlines() if expected in line)
    assert found.startswith("evalution-acme/src/evalution_acme/upstream.py:")
    assert " recorded" in found


def test_missing_option_is_reported_with_its_place(packages: Path, check: Check) -> None:
    replace(
        packages / "evalution-acme" / "recorded" / "acme/options.py", "    width", "    breadth"
    )
    _, printed = check()
    text = (packages / "evalution-acme/src/evalution_acme/upstream.py").read_text("utf-8")
    line = text.splitlines().index('        "width",') + 1
    assert f"evalution-acme/src/evalution_acme/upstream.py:{line}: recorded" in printed


def test_keyword_only_parameter_is_not_passed_by_position(packages: Path, check: Check) -> None:
    said = packages / "evalution-acme/src/evalution_acme/upstream.py"
    replace(said, "self, *, depth: int = 2", "self, depth: int = 2")
    status, printed = check()
    assert status == 1
    assert "parameter depth is keyword-only and stands elsewhere" in printed


def test_fake_is_compared_with_the_source(packages: Path, check: Check) -> None:
    fake = "class Engine:\n    def add(self, request, prompt): ...\n\n\n"
    fake += 'UPSTREAM = {"Engine": "acme.Engine"}\n'
    write(packages / "evalution-acme" / "tests" / "fake_acme.py", fake)
    status, printed = check("evalution-acme")
    assert status == 1
    assert "fake_acme.py:2: recorded" in printed
    assert "Engine.add: no parameter request" in printed


def test_fields_of_a_fake_are_compared_with_their_defaults(packages: Path, check: Check) -> None:
    fake = "from dataclasses import dataclass\n\n\n@dataclass\nclass Options:\n"
    fake += "    limit: int = 17\n    more: int = 0\n\n\n"
    fake += 'UPSTREAM = {"Options": "acme.options.Options"}\n'
    write(packages / "evalution-acme" / "tests" / "fake_acme.py", fake)
    status, printed = check("evalution-acme")
    assert status == 1
    assert "default of limit is 16, not 17" in printed
    assert "acme.options.Options: no parameter more" in printed


def test_source_without_a_declaration_fails(packages: Path, check: Check) -> None:
    (packages / "evalution-acme" / "src" / "evalution_acme" / "upstream.py").unlink()
    status, printed = check()
    assert status == 1
    assert "sources listed: 1, modules that name one: 0" in printed


def test_unknown_package_is_reported(check: Check) -> None:
    status, printed = check("evalution-zeta")
    assert status == 2
    assert "no package named evalution-zeta" in printed
