"""Keys that must never change by themselves."""

from __future__ import annotations

import subprocess
import sys

GOLDEN = """
from evalution.journal import make_answer_base, make_request_key
from evalution_core import GenerationRequest, LoglikelihoodRequest, Model
from evalution_core import RollingLoglikelihoodRequest

base = make_answer_base(
    engine=None, model=Model("m"), identity={"b": {"d": 1.5, "c": None}, "a": [1, True]},
    execution={"dtype": "float64", "max_model_len": 512, "device": "cpu"},
    scoring_policy={"bos": "once"},
)
print(base.digest.hex())
for request in (
    GenerationRequest("a\\u00e9\\U0001f600", stop=["\\n"], temperature=1, seed=3),
    LoglikelihoodRequest("a", " b", messages=[{"role": "user", "content": "c"}]),
    RollingLoglikelihoodRequest("a", input_ids=(1, 2)),
):
    print(make_request_key(base, suite="s", row=1, position=2, request=request).hex())
"""
DIGESTS = [
    "970a8d774fee39f99c12f2d281f92b410452b9a164267d1528c8e4f3db9315a5",
    "d14d1ea579d2bf64081002de83d2403af688ddcd13f311fc459e8d542b3ffbf1",
    "f5b116ec5645797f71a1adddd6cdbc436e963e5e623f78e24d31d5c1c5e46c3b",
    "7322cb361104006c63a226556e9a947e95402ee6b29b4235420bf2ce25e6d73f",
]


def test_keys_are_the_same_in_every_process_and_version() -> None:
    """A change here makes every journal and cache worthless: raise the number of the keys then."""
    shown = subprocess.run(
        [sys.executable, "-c", GOLDEN], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == DIGESTS
