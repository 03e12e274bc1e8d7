"""Becomes the installed torchvision, whose operators are built for CUDA and left out elsewhere.

SGLang and Transformers import it for models that see; its Python part only wants the operators
declared.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parents[1]
OPERATORS = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

spec = PathFinder.find_spec("torchvision", [at for at in sys.path if Path(at).resolve() != HERE])
assert spec is not None
assert spec.loader is not None
installed = module_from_spec(spec)
# Declarations last as long as the library object.
installed.__dict__["_operators"] = OPERATORS
sys.modules["torchvision"] = installed
spec.loader.exec_module(installed)
