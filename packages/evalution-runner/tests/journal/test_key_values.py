"""Keys that must never change by themselves."""

from __future__ import annotations

import subprocess
import sys

GOLDEN = """
from evalution.journal.records import make_answer_base, make_request_key
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
    "485533785ae293c103161407dea2df4646dc0b5109893e60d96e01e19052f9dc",
    "9c71bf1650c0f72e9743f82e1bb37f9f10761ca355cdf37dc5b2a57d270d11a1",
    "36742a9f87245b15f2a7b5e08b89f85ea6a7e5abb6a34bfc7ac8504950aa2dda",
    "6a668386513f81bbe7f672fd0de759c27f151e61fe07c2a543a262ffe716ec8d",
]


def test_keys_are_the_same_in_every_process_and_version() -> None:
    """A change here makes every journal and cache worthless: raise the number of the keys then."""
    shown = subprocess.run(
        [sys.executable, "-c", GOLDEN], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == DIGESTS
