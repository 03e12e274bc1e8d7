"""The reference engine passes the whole conformance kit, with no gap."""

from __future__ import annotations

from evalution_conformance import EngineConformance
from evalution_core import Model
from evalution_reference.engine import Reference


class TestReferenceFloat64(EngineConformance):
    engine = Reference(dtype="float64")
    model = Model(path="builtin:tiny")


class TestReferenceFloat32(EngineConformance):
    # How it is found, opened, streamed and stopped has no precision.
    engine = Reference(dtype="float32")
    model = Model(path="builtin:tiny")
    checks = frozenset(
        {
            "boundary",
            "checkpoint",
            "distributions",
            "generation",
            "isolation",
            "rolling",
            "sampling",
            "scoring",
            "top_logprobs",
            "test_describe_execution_is_json_safe_and_stable",
            "test_the_self_check_passes",
        }
    )
