"""Options of the SGLang engine: refusals, upstream's names, and a machine without SGLang."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalution_core import ConfigurationError, EngineUnavailableError, Model
from evalution_sglang import SGLang
from evalution_sglang import runtime as installed
from evalution_sglang.arguments import choose_attention, make_arguments

TINY = Model("builtin:tiny")
WITHOUT_SGLANG = """
import sys
from evalution_core import EngineUnavailableError, Model
from evalution_sglang import SGLang, runtime
assert "max_running_requests" in SGLang.options_schema()["properties"]
assert SGLang(max_running_requests=4).to_dict()["max_running_requests"] == 4
runtime.DISTRIBUTIONS = ("sglang-that-nobody-has",)
for ask in (SGLang().describe_runtime, lambda: SGLang().build(Model("builtin:tiny"))):
    try:
        ask()
    except EngineUnavailableError as error:
        print(error)
assert not {"torch", "sglang"} & set(sys.modules)
"""


@pytest.fixture
def runtime() -> Any:
    pytest.importorskip("sglang", reason="sglang is not installed")
    return installed.import_sglang()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGLang(batch_size=0), "must be at least 1 or 'auto', got 0"),
        (
            lambda: SGLang(max_model_len=64, context_length=32),
            "max_model_len=64 and context_length=32 of engine SGLang mean the same: give one",
        ),
        (lambda: SGLang(tp_size=0), "'tp_size' of engine SGLang must be at least 1"),
        (lambda: SGLang(scored_tokens=-1), "'scored_tokens' of engine SGLang must be"),
        (lambda: SGLang(mem_fraction_static=1.0), "must be below 1.0, got 1.0"),
        (lambda: SGLang(max_model_len=1), "must be at least 2, got 1"),
        (lambda: SGLang(dtype="float64"), "dtype"),  # pyright: ignore[reportArgumentType]
        (lambda: SGLang.from_options({"max_runing_requests": 3}), "mean 'max_running_requests'"),
    ],
)
def test_invalid_option_is_refused(make: Callable[[], SGLang], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("engine", "model", "message"),
    [
        (SGLang(), Model(), "needs model.path: a folder, a Hub id, or builtin:tiny"),
        (SGLang(), Model("./nowhere"), "'./nowhere' does not exist; give a folder with config"),
        (SGLang(max_model_len=513), TINY, "max_model_len=513 must be between 2 and the model's"),
        (SGLang(context_length=513), TINY, "context_length=513 must be between 2 and the model's"),
        (
            SGLang(sglang_kwargs={"max_runing_requests": 2}),
            TINY,
            "has no argument 'max_runing_requests'; did you mean 'max_running_requests'?",
        ),
        (SGLang(sglang_kwargs={"revision": "x"}), TINY, "may not hold revision: set model.revis"),
        (
            SGLang(sglang_kwargs={"skip_tokenizer_init": False}),
            TINY,
            "sglang_kwargs may not hold skip_tokenizer_init: the engine sets it",
        ),
        (
            SGLang(sglang_kwargs={"nnodes": 2}),
            TINY,
            "sglang_kwargs may not hold nnodes: an engine runs on one machine",
        ),
        (
            SGLang(sglang_kwargs={"preferred_sampling_params": '{"repetition_penalty": 1.1}'}),
            TINY,
            "may not hold preferred_sampling_params: each request says how it is sampled",
        ),
        (
            SGLang(sglang_kwargs={"chat_template": "chatml"}),
            TINY,
            "may not hold chat_template: chats are rendered before SGLang gets them",
        ),
        (
            SGLang(page_size=4, sglang_kwargs={"page_size": 8}),
            TINY,
            "page_size is set twice, the second time in sglang_kwargs",
        ),
        (
            SGLang(sglang_kwargs={"stream_interval": 2}),
            Model("builtin:tiny", model_kwargs={"stream_interval": 4}),
            "stream_interval is set twice, the second time in model.model_kwargs",
        ),
        (SGLang(quantization="no-such"), TINY, "SGLang couldn't load 'builtin:tiny': "),
        (
            SGLang(device="cpu", enable_deterministic_inference=True),
            TINY,
            "SGLang couldn't load 'builtin:tiny': ValueError",
        ),
    ],
)
def test_option_against_model_or_version_is_refused(
    runtime: Any, engine: SGLang, model: Model, message: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        engine.build(model)
    assert message in str(refused.value)


def test_options_reach_sglang_under_its_names(runtime: Any) -> None:
    options: dict[str, Any] = {
        "tp_size": 2,
        "dp_size": 3,
        "pp_size": 4,
        "dtype": "float16",
        "quantization": "fp8",
        "load_format": "safetensors",
        "kv_cache_dtype": "fp8_e5m2",
        "mem_fraction_static": 0.5,
        "max_running_requests": 4,
        "max_total_tokens": 1000,
        "max_prefill_tokens": 200,
        "chunked_prefill_size": 100,
        "page_size": 16,
        "schedule_policy": "fcfs",
        "disable_radix_cache": True,
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "enable_deterministic_inference": True,
        "random_seed": 7,
    }
    engine = SGLang.from_options({**options, "sglang_kwargs": {"stream_interval": 2}})
    model = Model("m", revision="r", trust_remote_code=True, model_kwargs={"model_impl": "sglang"})
    found = make_arguments(engine, model, "/m", runtime)
    wanted = {**options, "stream_interval": 2, "model_impl": "sglang", "model_path": "/m"}
    assert {name: found[name] for name in wanted} == wanted
    assert (found["revision"], found["trust_remote_code"]) == ("r", True)


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ({"device": "cuda", "dtype": "float32"}, {"attention_backend": "triton"}),
        ({"device": "cuda", "dtype": "bfloat16"}, {}),
        ({"device": "cpu", "dtype": "float32"}, {}),
        ({"device": "cuda"}, {}),
        ({"device": "cuda", "dtype": "float32", "attention_backend": "torch_native"}, {}),
        ({"device": "cuda", "dtype": "float32", "decode_attention_backend": "flex"}, {}),
    ],
)
def test_float32_on_a_gpu_gets_kernels_that_have_it(
    arguments: dict[str, Any], given: dict[str, str]
) -> None:
    assert choose_attention(arguments) == given


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_missing_device_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr("evalution_sglang.arguments.find_device", lambda: "cpu")
    with pytest.raises(ConfigurationError) as refused:
        SGLang(device=device).build(TINY)
    assert str(refused.value).startswith(f"device={device!r}: torch finds only a CPU here; leave")


def test_missing_sglang_leaves_options_listed_and_names_the_install_command() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SGLANG], capture_output=True, text=True, check=True
    )
    refusals = done.stdout.splitlines()
    assert len(refusals) == 2
    for line in refusals:
        assert line.startswith("sglang-that-nobody-has is not installed; ")
        assert line.endswith(installed.install_hint())


@pytest.mark.parametrize(
    ("system", "python", "devices", "hint"),
    [
        ("linux", (3, 11), ["/dev/nvidiactl"], 'pip install "sglang>=0.5.22,<0.5.24"'),
        ("linux", (3, 13), ["/dev/kfd"], 'pip install "sglang>=0.5.22,<0.5.24"'),
        ("linux", (3, 11), [], "whose kernels need a GPU; none is here, where VLLM"),
        ("linux", (3, 14), [], "no release for Python 3.14; make an environment with Python 3.11"),
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
        with pytest.raises(EngineUnavailableError, match="SGLang runs on Linux alone"):
            SGLang().describe_runtime()


def test_describe_runtime_needs_no_model_and_restores_the_process() -> None:
    pytest.importorskip("sglang", reason="sglang is not installed")
    environ, policy = dict(os.environ), asyncio.get_event_loop_policy()
    start, handlers = multiprocessing.get_start_method(allow_none=True), logging.root.handlers[:]
    described = SGLang().describe_runtime()
    assert described["version"].startswith("sglang 0.5.")
    assert described["device"] in ("cpu", "cuda", "xpu")
    assert SGLang(device="npu").describe_runtime()["device"] == "npu"
    assert dict(os.environ) == environ
    assert asyncio.get_event_loop_policy() is policy
    assert multiprocessing.get_start_method(allow_none=True) == start
    assert logging.root.handlers == handlers
