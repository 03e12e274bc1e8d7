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
    "9b7343ffe69b2cc73d1d257ca6f7727a378cebc01700c991bee72113e5ff4eaa",
    "e112285adbe8e64473436c3f80d1129b475487e08d3282e3ec1761e5b620a0b0",
    "024750e68daa1d45faaf01d60da2f69eb95074ccced3d2b99e6c9c52e9e52ca1",
    "89cff564bbefc081fe513b5d70a6e23da3ba1cd67e2afd27034c3a88bfef813b",
]


def test_keys_are_the_same_in_every_process_and_version() -> None:
    """A change here makes every journal and cache worthless: raise the number of the keys then."""
    shown = subprocess.run(
        [sys.executable, "-c", GOLDEN], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == DIGESTS
