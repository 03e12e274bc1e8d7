"""Importing GPTQModel and loading with it leave the process around them as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_NAMES = ("HF_HOME", "HF_HUB_CACHE", "CUDA_DEVICE_ORDER", "PYTORCH_ALLOC_CONF")
_RUN = """
import json, logging, os, sys
import torch, transformers

def seen():
    root = logging.getLogger()
    return {"environment": dict(os.environ), "root": [root.level, len(root.handlers)]}

before = seen()
from evalution_core import GenerationRequest, Model
from evalution_gptqmodel import GPTQModel
with GPTQModel(device="cpu").build(Model(path=sys.argv[1])) as session:
    (output,) = session.generate([GenerationRequest("a", max_new_tokens=2)])
after = seen()
print(json.dumps({"text": output.text, "before": before, "after": after}))
"""


@pytest.mark.slow
def test_a_run_prints_nothing_and_leaves_the_process_as_it_was(quantized: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _NAMES}
    environment["HF_HUB_CACHE"] = "/nowhere/hub"
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(quantized)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stderr == ""
    printed = json.loads(done.stdout)
    assert printed["text"]
    assert printed["after"]["root"] == printed["before"]["root"]
    for name in _NAMES:
        assert printed["after"]["environment"].get(name) == printed["before"]["environment"].get(
            name
        )
