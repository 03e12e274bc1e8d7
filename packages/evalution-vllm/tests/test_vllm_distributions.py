"""Distributions and likeliest tokens of vLLM, beside those of the reference engine."""

from __future__ import annotations

import pytest
from whole_windows import WholeWindows

pytest.importorskip("vllm", reason="vllm is not installed")


class TestvLLM(WholeWindows):
    pass
