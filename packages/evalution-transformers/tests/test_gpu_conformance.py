"""Both engines pass the whole conformance kit on a GPU, in each dtype and with each attention.

EVALUTION_GPU_DEVICE names another device; on a CPU the classes are rehearsed, without CUDA graphs.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from evalution_conformance import EngineConformance
from evalution_core import Model
from evalution_transformers import Transformers, TransformersCompat

pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.gpu

DEVICE = os.environ.get("EVALUTION_GPU_DEVICE", "cuda")
ON_CUDA = True if DEVICE.startswith("cuda") else None
TINY = Model(path="builtin:tiny")
needs_flash_attention = pytest.mark.skipif(
    find_spec("flash_attn") is None, reason="flash-attn is not installed"
)


class TestCudaFloat32(EngineConformance):
    engine = Transformers(dtype="float32", device=DEVICE)
    model = TINY


class TestCudaBFloat16(EngineConformance):
    engine = Transformers(dtype="bfloat16", device=DEVICE)
    model = TINY


class TestCudaFloat16(EngineConformance):
    engine = Transformers(dtype="float16", device=DEVICE)
    model = TINY


class TestCudaEager(EngineConformance):
    engine = Transformers(dtype="float32", device=DEVICE, attn_implementation="eager")
    model = TINY


class TestCudaCompatFloat32(EngineConformance):
    engine = TransformersCompat(dtype="float32", device=DEVICE)
    model = TINY


class TestCudaCompatBFloat16(EngineConformance):
    engine = TransformersCompat(dtype="bfloat16", device=DEVICE)
    model = TINY


class TestCudaCompatFloat16(EngineConformance):
    engine = TransformersCompat(dtype="float16", device=DEVICE)
    model = TINY


class TestCudaPagedFloat32(EngineConformance):
    engine = Transformers(dtype="float32", device=DEVICE, paged=True)
    model = TINY


class TestCudaPagedBFloat16(EngineConformance):
    engine = Transformers(dtype="bfloat16", device=DEVICE, paged=True)
    model = TINY


class TestCudaPagedGraphs(EngineConformance):
    engine = Transformers(dtype="bfloat16", device=DEVICE, paged=True, use_cuda_graph=ON_CUDA)
    model = TINY


class TestCudaPagedAsync(EngineConformance):
    engine = Transformers(dtype="bfloat16", device=DEVICE, paged=True, use_async_batching=ON_CUDA)
    model = TINY


@needs_flash_attention
class TestCudaFlash(EngineConformance):
    engine = Transformers(
        dtype="bfloat16", device=DEVICE, attn_implementation="flash_attention_2", paged=False
    )
    model = TINY


@needs_flash_attention
class TestCudaPagedFlash(EngineConformance):
    engine = Transformers(
        dtype="bfloat16", device=DEVICE, attn_implementation="flash_attention_2", paged=True
    )
    model = TINY
