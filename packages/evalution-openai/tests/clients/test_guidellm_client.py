"""`guidellm run` against our server: load as others measure it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("guidellm", reason="guidellm isn't installed; see tools/envs")
pytestmark = pytest.mark.wide


def test_chats_have_no_failed_request(url: str, tokenizer_folder: Path, tmp_path: Path) -> None:
    # The other route has a run of 200 requests in packages/evalution-guidellm.
    report = tmp_path / "report.json"
    command = [
        str(Path(sys.executable).with_name("guidellm")), "run",
        "--backend", f"kind=openai_http,target={url},request_format=/v1/chat/completions",
        "--profile", "kind=throughput,max_concurrency=3",
        "--constraint", "kind=max_requests,count=6",
        "--tokenizer", f"kind=huggingface_auto,model={tokenizer_folder}",
        "--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8",
        "--output", f"kind=json,path={report}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    # Its exit status is 0 whatever became of the requests.
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert requests["errored"] == []
    assert len(requests["successful"]) == 6
    for request in requests["successful"]:
        assert request["output_tokens"] == 8
        assert request["time_to_first_token_ms"] > 0
