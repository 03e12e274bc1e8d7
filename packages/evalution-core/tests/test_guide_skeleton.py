"""The Engine Guide's Minimal Skeleton, as it stands but for its imports, is an engine."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from evalution_core import BaseInferenceSession, ConfigurationError, Model, load_engine
from evalution_core.capabilities import GUIDE_CAPABILITIES

SKELETON = Path(__file__).parent / "data" / "guide_skeleton.py"


@pytest.fixture
def skeleton() -> Iterator[ModuleType]:
    spec = spec_from_file_location("guide_skeleton", SKELETON)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["guide_skeleton"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["guide_skeleton"]


def test_the_engine_builds_a_session(skeleton: ModuleType) -> None:
    with skeleton.MyEngine(device="cpu").build(Model("tiny")) as session:
        assert isinstance(session, BaseInferenceSession)
        assert session == skeleton.MySession(model_path="tiny", device="cpu")
        session.gc()
    session.close()


def test_the_session_is_whole_without_a_call_of_super(skeleton: ModuleType) -> None:
    session = skeleton.MySession(model_path="tiny")
    assert session.identity() is None
    assert session.capabilities == GUIDE_CAPABILITIES
    assert session.tokenizer is None
    assert session.check().outcome == "not checkable"
    with pytest.raises(NotImplementedError):
        session.generate([])


def test_engine_and_session_pickle(skeleton: ModuleType) -> None:
    engine = skeleton.MyEngine(device="cpu")
    assert pickle.loads(pickle.dumps(engine)) == engine
    session = engine.build(Model("tiny"))
    assert pickle.loads(pickle.dumps(session)) == session


def test_the_engine_describes_itself(skeleton: ModuleType) -> None:
    engine = skeleton.MyEngine(device="cpu")
    assert json.loads(json.dumps(engine.to_dict())) == {"device": "cpu"}
    assert engine.options_schema()["properties"]["device"]["default"] is None
    assert engine.capabilities == GUIDE_CAPABILITIES
    assert engine.processes_limit is None
    assert engine.requests_limit is None
    assert engine.default_model() is None
    described = engine.build(Model("tiny")).describe_execution()
    assert described == {"backend": "my_engine", "device": "cpu"}


def test_its_options_are_checked(skeleton: ModuleType) -> None:
    assert skeleton.MyEngine("cpu").device == "cpu"
    with pytest.raises(ConfigurationError, match="no option 'devise'; did you mean 'device'"):
        skeleton.MyEngine(devise="cpu")
    with pytest.raises(ConfigurationError, match="option 'device' of engine MyEngine"):
        skeleton.MyEngine(device=0)


def test_it_is_found_by_its_path(skeleton: ModuleType) -> None:
    assert load_engine("guide_skeleton:MyEngine") is skeleton.MyEngine


def test_only_the_imports_differ_from_the_guide() -> None:
    guides, ours = (
        "from evalution.config import Model\nfrom evalution.engines.base import (\n",
        "from evalution_core import (\n",
    )
    _, _, text = SKELETON.read_text(encoding="utf-8").partition("\n")
    assert text.count(ours) == 1
    assert text.count("    Model,\n") == 1
    rest = text.replace(ours, guides).replace("    Model,\n", "")
    assert rest.startswith(GUIDE_HEAD)
    assert rest.count("raise NotImplementedError") == 4


GUIDE_HEAD = """from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evalution.config import Model
from evalution.engines.base import (
    BaseEngine,
    BaseInferenceSession,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
)
"""
