"""The engine keeps the contract, on the real runtime and a converted model."""

import os
from pathlib import Path

import pytest

from evalution_conformance import EngineConformance
from evalution_core import ConfigurationError, Model
from evalution_ctranslate2 import CTranslate2
from evalution_reference import Reference

CONVERTED = os.environ.get("CT2_MODEL", "tiny-ct2")


class TestCTranslate2(EngineConformance):
    engine = CTranslate2(max_model_len=512, threads=1)
    model = Model(CONVERTED)
    oracle = Reference(dtype="float64")
    oracle_model = Model("builtin:tiny")


def test_folder_without_weights_is_refused_with_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"folder with model\.bin; make one with ct2-"):
        CTranslate2().build(Model(str(tmp_path)))
