"""The bench of scoring against lm-eval's `hf` model runs on the CPU, and unchanged on a GPU."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval", reason="needs the environment lm-eval of tools/envs")

BENCH = Path(__file__).parents[4] / "tools" / "bench" / "scoring.py"
SMALL = """
pairs = 1
seed = 1
peer_batch_sizes = [4]
peer_max_batch_size = 4

[model]
vocab_size = 500
hidden_size = 64
intermediate_size = 96
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 256
initializer_range = 0.3

[shapes.hellaswag]
kind = "choices"
rows = 2
head = 0
context = [30, 90]
answer = [18, 38]
choices = 4
least = 1.7
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(SMALL, "utf-8")
    return file


def run(*arguments: str | Path) -> list[str]:
    command = [sys.executable, str(BENCH), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_shapes_of_a_file_are_run_on_the_cpu(small: Path) -> None:
    runtime, _, model, row, memory = run("--config", small)
    assert runtime.startswith("float32 cpu, evalution-transformers ")
    assert model.startswith("model: 0 M, vocabulary 500")
    name, requests, _, _, _, share, nats, *_ = row.split()
    assert (name, requests, share) == ("hellaswag", "8", "1.000")
    assert float(nats) < 1e-4
    assert memory.startswith("peak memory: ")


def test_what_is_not_there_is_refused(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCH.parent)
    bench = importlib.import_module("scoring")
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--config", str(small), "mmlu"])
    assert "no shape 'mmlu'; there are: hellaswag" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--config", str(BENCH.with_name("scoring_cuda.toml"))])
    assert "sees no CUDA device, which" in capsys.readouterr().err


def test_batch_size_for_which_memory_runs_out_is_not_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(BENCH.parent)
    bench = importlib.import_module("scoring")

    def theirs(peer: Any, shape: Any, size: int) -> Callable[[], None]:
        def run() -> None:
            if size == 8:
                raise torch.OutOfMemoryError("no room")

        return run

    monkeypatch.setattr(bench, "theirs", theirs)
    config = {"device": "cpu", "peer_batch_sizes": [8, 4]}
    shape = bench.Shape("mmlu", "choices", [], {})
    assert bench.find_best_batch(SimpleNamespace(), shape, config) == 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_a_gpu_runs_the_shapes_meant_for_one() -> None:
    file = BENCH.with_name("scoring_cuda.toml")
    found = run("--config", file, "--pairs", "1", "hellaswag")
    assert found[0].startswith("bfloat16 ")
    assert found[-1].startswith("hellaswag")
