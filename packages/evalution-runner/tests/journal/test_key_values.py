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
    "41f0bd398d3f3bda6fa465dbf9472478ffbe522eb1296d34824478e43c8d04b1",
    "347762dfc5d5f324706af74faeac254077fa67c047eff22d0a7b0022b6420bdf",
    "e11ff87ebf237e8fde6fddc9c6920f171fce0633b14af755d320593b8e6165da",
    "c886c218c9acd1eeadd652af536e4fc683bdc77e9f9712bc728652604bd7c7fd",
]


def test_keys_are_the_same_in_every_process_and_version() -> None:
    """A change here makes every journal and cache worthless: raise the number of the keys then."""
    shown = subprocess.run(
        [sys.executable, "-c", GOLDEN], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == DIGESTS
