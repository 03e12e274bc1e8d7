"""Schemathesis on the OpenAPI document: each field at its edges, random bodies, and linked calls.

By hand, with more examples: `schemathesis run URL/openapi.json --max-examples 800 --seed 21
--request-timeout 120 --exclude-checks positive_data_acceptance`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("schemathesis", reason="schemathesis isn't installed; see tools/envs")
pytestmark = pytest.mark.wide


def test_every_answer_is_as_the_document_says(client: Any, tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run",
        f"{str(client.base_url).rstrip('/')}/openapi.json", "--seed", "21", "--max-examples", "40",
        # A body that fits may still be too long for the model, or outside its vocabulary.
        "--exclude-checks", "positive_data_acceptance",
        # 127 answers of the length that the model allows take their time on a busy machine.
        "--request-timeout", "120",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    (generated,) = re.findall(r"(\d+) generated", done.stdout)
    assert int(generated) > 1000
    assert re.search(r"[1-5] covered / 5 selected", done.stdout), "no link was followed"
