"""`guidellm run` through the backend in process and through Evalution's server: the same work."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("guidellm", reason="guidellm isn't installed; see tools/envs")
pytestmark = pytest.mark.wide

Program = Callable[..., subprocess.CompletedProcess[str]]
REQUESTS = 200
LOAD = (
    "--profile", "kind=concurrent,streams=8",
    "--constraint", f"kind=max_requests,count={REQUESTS}",
    "--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=16",
    "--disable-console-interactive",
)  # fmt: skip
FORMAT = "request_format=/v1/completions"


def test_run_in_process_and_through_the_server_give_the_same_answers(
    program: Program,
    served: str,
    key: str,
    tokenizer_folder: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # By default, each stream has a process, and each process takes seconds to start.
    monkeypatch.setenv("GUIDELLM__MAX_WORKER_PROCESSES", "2")
    tokenizer = ("--tokenizer", f"kind=huggingface_auto,model={tokenizer_folder}")
    here = run(
        program,
        "evalution-guidellm",
        f"kind=evalution,engine=Reference,model=builtin:tiny,{FORMAT}",
        *tokenizer,
        folder=tmp_path,
    )
    there = run(
        program,
        "guidellm",
        f"kind=openai_http,target={served},api_key={key},{FORMAT}",
        *tokenizer,
        folder=tmp_path,
    )
    assert count_tokens(here) == count_tokens(there) == (REQUESTS * 32, REQUESTS * 16)
    assert read_answers(here) == read_answers(there)
    rates = [
        each["metrics"]["output_tokens_per_second"]["successful"]["mean"] for each in (here, there)
    ]
    with capsys.disabled():
        print(
            f"\n{rates[0]:.0f} tokens/s in process, {rates[1]:.0f} through the server, "
            f"ratio {rates[0] / rates[1]:.2f}"
        )


def run(program: Program, script: str, backend: str, *words: str, folder: Path) -> dict[str, Any]:
    report = folder / f"{script}.json"
    words = ("run", "--backend", backend, *LOAD, *words, "--output", f"kind=json,path={report}")
    done = program(script, *words, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    # Its exit status is 0 whatever became of the requests.
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals == {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}
    for request in benchmark["requests"]["successful"]:
        assert request["time_to_first_token_ms"] > 0
    return benchmark


def count_tokens(benchmark: dict[str, Any]) -> tuple[int, int]:
    done = benchmark["requests"]["successful"]
    return sum(one["prompt_tokens"] for one in done), sum(one["output_tokens"] for one in done)


def read_answers(benchmark: dict[str, Any]) -> dict[str, str]:
    """Return the answer to each prompt."""
    return {
        json.loads(one["request_args"])["body"]["prompt"]: one["output"]
        for one in benchmark["requests"]["successful"]
    }
