"""Distributions and likeliest tokens of SGLang, beside those of the reference engine."""

from __future__ import annotations

import pytest
from whole_windows import WholeWindows

pytest.importorskip("sglang", reason="sglang is not installed")


class TestSGLang(WholeWindows):
    pass
