"""The bench of generation against upstream's own runs on the CPU, and unchanged on a GPU."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from evalution_enginekit.runtime import is_in_range

BENCH = Path(__file__).parents[3] / "tools" / "bench" / "paged_generation.py"
WAYS = ["paged", "paged", "forward passes", "forward passes"]
SMALL = """
pairs = 1
seed = 1

[cpu]
dtype = "float32"
attention = ["sdpa"]
rows = 3
cache_tokens = 256
step_tokens = [16, 64]
batch_sizes = [2, 4]

[cpu.model]
vocab_size = 96
hidden_size = 64
intermediate_size = 96
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 128
initializer_range = 0.3

[cpu.shapes.skewed]
prompts = 7
prompt = [2, 40]
mean_tokens = 6
most_tokens = 30

[cpu.shapes.even]
prompts = 5
prompt = [2, 40]
most_tokens = 6
"""

pytestmark = pytest.mark.skipif(
    not is_in_range(transformers.__version__, ">=5.23"),
    reason=f"the manager of transformers {transformers.__version__} may not be paused and sized",
)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(SMALL, "utf-8")
    return file


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rows(done: subprocess.CompletedProcess[str], shape: str) -> list[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(shape)]


def test_all_sides_make_the_same_tokens_on_the_cpu(small: Path) -> None:
    done = run("--device", "cpu", "--config", small)
    for shape in ("skewed", "even"):
        found = rows(done, shape)
        assert [way for way, line in zip(WAYS, found, strict=True) if way in line] == WAYS
        assert ["generate_batch" in line for line in found] == [True, False, True, False]
        assert all(line.endswith(" 100.0") for line in found), found


def test_a_missing_device_or_manager_is_refused(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCH.parent)
    bench = importlib.import_module("paged_generation")
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--device", "cpu", "--config", str(small), "skewd"])
    assert "no shape 'skewd' for cpu; there are: skewed, even" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--device", "cuda"])
    assert "sees no CUDA device; leave --device cuda out" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_the_smallest_shape_of_a_gpu_runs_on_one() -> None:
    found = rows(run("--device", "cuda", "--pairs", "1", "even"), "even")
    assert [way for way, line in zip(WAYS, found, strict=True) if way in line] == WAYS
