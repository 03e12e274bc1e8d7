"""The Engine Guide's skeleton and the guide's own engine keep what holds before a model works."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from evalution_conformance import StructuralConformance
from evalution_core import Model

ROOT = Path(__file__).parents[1]


def imported(name: str, file: Path) -> ModuleType:
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TESTS_OF_CORE = ROOT / "packages" / "evalution-core" / "tests"
skeleton = imported("structural_skeleton", TESTS_OF_CORE / "data" / "guide_skeleton.py")
my_engine = imported("structural_my_engine", ROOT / "docs" / "examples" / "my_engine.py")


def test_skeleton_runs_with_the_imports_of_the_guide(tmp_path: Path) -> None:
    text = (TESTS_OF_CORE / "data" / "guide_skeleton.py").read_text(encoding="utf-8")
    guides = "from evalution.config import Model\nfrom evalution.engines.base import (\n"
    text = text.replace("    Model,\n", "").replace("from evalution_core import (\n", guides)
    assert "evalution_core" not in text
    file = tmp_path / "skeleton.py"
    file.write_text(text, encoding="utf-8")
    module = imported("structural_guide_imports", file)
    session = module.MyEngine(device="cpu").build(module.Model("anything"))
    assert session.describe_execution() == {"backend": "my_engine", "device": "cpu"}


class TestSkeleton(StructuralConformance):
    engine = skeleton.MyEngine(device="cpu")
    model = Model("anything")


class TestMyEngine(StructuralConformance):
    engine = my_engine.MyEngine()
    model = Model(str(ROOT / "LICENSE"))
