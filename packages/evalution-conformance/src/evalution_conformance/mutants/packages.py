"""Faults of a vendor's distribution, each written to a temporary folder and imported from there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from evalution_conformance.mutants.catalogue import package_fault
from evalution_core import BaseEngine

_ENGINE = """\
from dataclasses import dataclass
from evalution_conformance.mutants.toy import Toy


@dataclass(slots=True)
class Acme(Toy):
    pass
"""
_METADATA = "Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n"
_LICENCE = "License-Expression: MIT\n"
_RANGE = "Requires-Dist: evalution-core<2,>=1.0\n"


@package_fault("test_the_range_of_core_is_compatible")
@contextmanager
def pins_core() -> Generator[BaseEngine]:
    """The distribution requires one version of core and no other."""
    pin = "Requires-Dist: evalution-core==1.0\n"
    with vendor_package("acme_pins_core", metadata=_LICENCE + pin) as engine:
        yield engine


@package_fault("test_the_package_is_typed")
@contextmanager
def untyped() -> Generator[BaseEngine]:
    """The package has no `py.typed`."""
    with vendor_package("acme_untyped", typed=False) as engine:
        yield engine


@package_fault("test_the_distribution_has_a_licence")
@contextmanager
def unlicensed() -> Generator[BaseEngine]:
    """The metadata names no licence."""
    with vendor_package("acme_unlicensed", metadata=_RANGE) as engine:
        yield engine


@package_fault("test_loading_the_adapter_imports_no_runtime")
@contextmanager
def loads_its_runtime() -> Generator[BaseEngine]:
    """The adapter imports its runtime when it is itself imported."""
    with vendor_package("acme_eager", runtime="torch") as engine:
        yield engine


@contextmanager
def vendor_package(
    name: str, *, metadata: str = _LICENCE + _RANGE, typed: bool = True, runtime: str | None = None
) -> Generator[BaseEngine]:
    """The engine of a distribution that exists as long as the context lasts.

    Args:
        name: of the package and the distribution; not imported before.
        metadata: lines for METADATA besides name and version.
        typed: whether the package has a `py.typed`.
        runtime: a module to be written beside the package, which imports it.
    """
    with TemporaryDirectory() as folder:
        package = Path(folder, name)
        package.mkdir()
        source = f"import {runtime}\n{_ENGINE}" if runtime else _ENGINE
        (package / "__init__.py").write_text(source, encoding="utf-8")
        if typed:
            (package / "py.typed").touch()
        if runtime:
            Path(folder, f"{runtime}.py").touch()
        information = Path(folder, f"{name}-1.0.dist-info")
        information.mkdir()
        text = _METADATA.format(name=name) + metadata
        (information / "METADATA").write_text(text, encoding="utf-8")
        sys.path.insert(0, folder)
        before = set(sys.modules)
        try:
            importlib.invalidate_caches()
            yield importlib.import_module(name).Acme()
        finally:
            sys.path.remove(folder)
            for imported in set(sys.modules) - before:
                if imported in (name, runtime):
                    del sys.modules[imported]
