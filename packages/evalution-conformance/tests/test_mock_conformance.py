"""The engine kit's mock keeps the contract, checked as a vendor would check it."""

from __future__ import annotations

from evalution_conformance import EngineConformance
from evalution_core import Model
from evalution_enginekit.mock import Mock


class TestMock(EngineConformance):
    engine = Mock(max_model_len=160)
    oracle = Mock(max_model_len=160)
    model = Model(path="mock")
