"""Options of the TensorRT-LLM engine: refusals, upstream's names, a machine without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalution_core import (
    ConfigurationError,
    EngineUnavailableError,
    Model,
)
from evalution_tensorrt_llm import TensorRTLLM
from evalution_tensorrt_llm import runtime as installed_runtime
from evalution_tensorrt_llm.load import read_checkpoint
from evalution_tensorrt_llm.runtime import runtime_environment

TINY = Model("builtin:tiny")
WITHOUT_RUNTIME = """
import sys
sys.modules["tensorrt_llm"] = None
from evalution_core import EngineUnavailableError, Model
from evalution_tensorrt_llm import TensorRTLLM, runtime
assert "max_batch_size" in TensorRTLLM.options_schema()["properties"]
assert TensorRTLLM(max_batch_size=4).to_dict()["max_batch_size"] == 4
runtime.DISTRIBUTION = "tensorrt-llm-that-nobody-has"
for ask in (TensorRTLLM().describe_runtime, lambda: TensorRTLLM().build(Model("builtin:tiny"))):
    try:
        ask()
    except EngineUnavailableError as error:
        print(error)
assert not {"torch", "transformers"} & set(sys.modules)
"""
CACHE = "kv_cache_config"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TensorRTLLM(batch_size=0), "must be at least 1 or 'auto', got 0"),
        (lambda: TensorRTLLM(max_batch_size=0), "must be at least 1, got 0"),
        (lambda: TensorRTLLM(scored_tokens=-1), "'scored_tokens' of engine TensorRTLLM must be"),
        (lambda: TensorRTLLM(free_gpu_memory_fraction=1.5), "must be at most 1.0, got 1.5"),
        (lambda: TensorRTLLM(max_model_len=1), "must be at least 2, got 1"),
        (lambda: TensorRTLLM(dtype="float64"), "dtype"),  # pyright: ignore[reportArgumentType]
        (lambda: TensorRTLLM(runtime_backend="tensorrt"), "'pytorch'"),  # pyright: ignore
        (lambda: TensorRTLLM.from_options({"max_batch": 3}), "did you mean 'max_batch_size'"),
    ],
)
def test_invalid_option_is_refused(make: Callable[[], TensorRTLLM], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("options", "model", "message"),
    [
        ({}, Model(), "needs model.path: a folder, a Hub id, or builtin:tiny"),
        ({}, Model("./nowhere"), "'./nowhere' does not exist; give a folder with config.json"),
        (
            {"max_model_len": 512},
            TINY,
            "must be between 2 and the model's own 512 less 1 that TensorRT-LLM needs: 511",
        ),
        (
            {"max_num_tokens": 64},
            TINY,
            "max_num_tokens=64 must be at least 512, the longest sequence, because a prompt is run",
        ),
        (
            {"llm_kwargs": {"max_batch": 2}},
            TINY,
            "tensorrt-llm 1.2.1 has no argument 'max_batch'; did you mean 'max_batch_size'?",
        ),
        (
            {"llm_kwargs": {CACHE: {"enable_block_use": True}}},
            TINY,
            "has no kv_cache_config field 'enable_block_use'; did you mean 'enable_block_reuse'?",
        ),
        ({"llm_kwargs": {CACHE: 3}}, TINY, "kv_cache_config must be a mapping of its fields, got"),
        (
            {"enable_block_reuse": True, "llm_kwargs": {CACHE: {"enable_block_reuse": False}}},
            TINY,
            "enable_block_reuse is set twice, the second time in kv_cache_config",
        ),
        (
            {"llm_kwargs": {"revision": "x"}},
            TINY,
            "llm_kwargs may not hold revision: set model.revision",
        ),
        (
            {"llm_kwargs": {"max_seq_len": 64}},
            TINY,
            "llm_kwargs may not hold max_seq_len: set the engine's max_model_len",
        ),
        (
            {"llm_kwargs": {"num_postprocess_workers": 2}},
            TINY,
            "llm_kwargs may not hold num_postprocess_workers: the engine sets it",
        ),
        (
            {"max_batch_size": 4, "llm_kwargs": {"max_batch_size": 8}},
            TINY,
            "max_batch_size is set twice, the second time in llm_kwargs",
        ),
        (
            {"llm_kwargs": {"stream_interval": 2}},
            Model("builtin:tiny", model_kwargs={"stream_interval": 4}),
            "stream_interval is set twice, the second time in model.model_kwargs",
        ),
    ],
)
def test_option_against_model_or_release_is_refused(
    installed: Any, options: dict[str, Any], model: Model, message: str
) -> None:
    installed("1.2.1")
    with pytest.raises(ConfigurationError) as refused:
        TensorRTLLM(**options).build(model)
    assert message in str(refused.value)


def test_options_reach_tensorrt_llm_under_its_names(installed: Any) -> None:
    installed("1.2.1")
    engine = TensorRTLLM(
        dtype="float16",
        tensor_parallel_size=2,
        pipeline_parallel_size=3,
        max_batch_size=4,
        max_num_tokens=100,
        max_model_len=64,
        attn_backend="FLASHINFER",
        runtime_backend="pytorch",
        kv_cache_dtype="fp8",
        free_gpu_memory_fraction=0.5,
        llm_kwargs={"stream_interval": 2, CACHE: {"tokens_per_block": 64}},
    )
    with engine.build(TINY) as session:
        args: Any = session._requests._llm.args  # pyright: ignore
        described = session.describe_execution()
    cache = args.kv_cache_config
    assert (args.dtype, args.tensor_parallel_size, args.pipeline_parallel_size) == ("float16", 2, 3)
    assert (args.max_batch_size, args.max_num_tokens, args.max_seq_len) == (4, 100, 65)
    assert (args.attn_backend, args.backend, args.stream_interval) == ("FLASHINFER", "pytorch", 2)
    assert (cache.dtype, cache.free_gpu_memory_fraction, cache.tokens_per_block) == ("fp8", 0.5, 64)
    assert cache.enable_block_reuse is False
    assert args.skip_tokenizer_init is True
    assert args.trust_remote_code is False
    assert described["dtype"] == "float16, cache in fp8"
    assert (described["max_model_len"], described["max_seq_len"]) == (64, 65)


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (
            RuntimeError("CUDA out of memory. Tried to allocate"),
            EngineUnavailableError,
            "doesn't fit into memory; set max_model_len, max_batch_size, free_gpu_memory_fraction",
        ),
        (
            RuntimeError("Found no NVIDIA driver on your system."),
            EngineUnavailableError,
            "TensorRT-LLM needs an NVIDIA GPU and its driver; on this machine take the engine",
        ),
        (ImportError("libmpi.so.40"), EngineUnavailableError, "loading 'builtin:tiny' needs more"),
        (
            ValueError("Unknown architecture " + "x" * 2000),
            ConfigurationError,
            "TensorRT-LLM couldn't load 'builtin:tiny': ValueError: Unknown architecture",
        ),
    ],
)
def test_failed_start_names_a_remedy(
    installed: Any,
    monkeypatch: pytest.MonkeyPatch,
    raised: Exception,
    kind: type[Exception],
    message: str,
) -> None:
    fake = installed("1.2.1")

    def fail(self: Any, *_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr(fake.LLM, "__init__", fail)
    with pytest.raises(kind) as refused:
        TensorRTLLM().build(TINY)
    assert message in str(refused.value)
    assert len(str(refused.value)) < 1000
    assert refused.value.__cause__ is raised


@pytest.mark.parametrize(
    ("release", "message"),
    [
        ("1.1.0", "needs tensorrt-llm>=1.2,<1.4, found tensorrt-llm 1.1.0; "),
        ("1.4.0rc1", "needs tensorrt-llm>=1.2,<1.4, found tensorrt-llm 1.4.0rc1; "),
    ],
)
def test_release_out_of_range_is_refused(installed: Any, release: str, message: str) -> None:
    installed(release)
    with pytest.raises(EngineUnavailableError) as refused:
        TensorRTLLM().build(TINY)
    assert message in str(refused.value)


def test_describe_runtime_names_version_and_device(installed: Any) -> None:
    installed("1.3.0rc20")
    described = TensorRTLLM().describe_runtime()
    assert described == {"version": "tensorrt-llm 1.3.0rc20", "device": "cuda"}


def test_missing_runtime_leaves_options_listed_and_names_the_install_command() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RUNTIME], capture_output=True, text=True, check=True
    )
    refusals = done.stdout.splitlines()
    assert len(refusals) == 2
    for line in refusals:
        assert line.startswith("tensorrt-llm-that-nobody-has is not installed; ")
        assert "tensorrt-llm-that-nobody-has>=1.2,<1.4" in line


@pytest.mark.parametrize(
    ("system", "python", "hint"),
    [
        ("linux", (3, 12), 'pip install "tensorrt-llm>=1.2,<1.4", on a machine with an NVIDIA GPU'),
        ("linux", (3, 11), "no release for Python 3.11; make an environment with Python 3.12, and"),
        ("linux", (3, 13), "no release for Python 3.13; make an environment with Python 3.12, and"),
        ("darwin", (3, 12), "on darwin take the engine Transformers (pip install evalution-trans"),
        ("win32", (3, 13), "on win32 take the engine Transformers (pip install evalution-transf"),
    ],
)
def test_install_hint_fits_system_and_python(
    monkeypatch: pytest.MonkeyPatch, system: str, python: tuple[int, int], hint: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(sys, "version_info", (*python, 0, "final", 0))
    monkeypatch.setattr(installed_runtime, "DISTRIBUTION", "tensorrt-llm-that-nobody-has")
    for ask in (TensorRTLLM().describe_runtime, lambda: TensorRTLLM().build(TINY)):
        with pytest.raises(EngineUnavailableError) as refused:
            ask()
        message = str(refused.value).replace("-that-nobody-has", "")
        assert hint in message
        assert ("Linux alone" in message) == (system != "linux")


def test_start_restores_the_environment_and_prints_to_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EVALUTION_KEPT", "mine")
    monkeypatch.delenv("TLLM_LOG_LEVEL", raising=False)
    before = dict(os.environ)
    with runtime_environment():
        assert os.environ["TRTLLM_NO_USAGE_STATS"] == "1"
        assert os.environ["TLLM_LOG_LEVEL"] == "warning"
        os.environ["EVALUTION_KEPT"] = "changed"
        os.environ["EVALUTION_STRAY"] = "1"
        del os.environ["PATH"]
        print("a banner")
    assert dict(os.environ) == before
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "a banner\n")


class FromTheHub:
    """A stand-in for Transformers with one model on the Hub."""

    def __init__(self, declared: dict[str, Any], ends: Any):
        self.AutoConfig = SimpleNamespace(from_pretrained=self._config)
        self.GenerationConfig = SimpleNamespace(from_pretrained=self._settings)
        self.utils = SimpleNamespace(cached_file=self._file)
        self._declared, self._ends = declared, ends

    def _config(self, path: str, **where: Any) -> Any:
        if path == "owner/none":
            raise OSError("no such repository")
        assert where == {"revision": "main", "trust_remote_code": False}
        return SimpleNamespace(to_dict=lambda: dict(self._declared), _commit_hash="abc")

    def _settings(self, path: str, **_: Any) -> Any:
        if self._ends is None:
            raise OSError("no generation_config.json")
        return SimpleNamespace(eos_token_id=self._ends)

    def _file(self, path: str, name: str, **_: Any) -> str:
        raise OSError(f"no {name} in {path}")


@pytest.mark.parametrize(
    ("stated", "declared", "named"),
    [
        ({"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, None, "NVFP4, cache in FP8"),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": None}, "modelopt", "FP8"),
        ({"quant_algo": None, "kv_cache_quant_algo": "FP8"}, None, "cache in FP8"),
        ({"quant_algo": None, "quantized_layers": {}}, "modelopt", "modelopt"),
        (None, "awq", "awq"),
        (None, None, None),
    ],
)
def test_quantization_is_what_modelopts_file_says(
    tmp_path: Path, stated: dict[str, Any] | None, declared: str | None, named: str | None
) -> None:
    config = {} if declared is None else {"quantization_config": {"quant_method": declared}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if stated is not None:
        text = json.dumps({"producer": {"name": "modelopt"}, "quantization": stated})
        (tmp_path / "hf_quant_config.json").write_text(text, encoding="utf-8")
    assert read_checkpoint(Model(str(tmp_path)), tmp_path).quantization == named


@pytest.mark.parametrize(("ends", "expected"), [(None, {7}), ([7, 9], {7, 9})])
def test_model_on_the_hub_is_described_by_its_configuration(
    monkeypatch: pytest.MonkeyPatch, ends: Any, expected: set[int]
) -> None:
    inner = {"max_position_embeddings": 64, "vocab_size": 12, "torch_dtype": "torch.float16"}
    declared = {
        "text_config": inner,
        "eos_token_id": 7,
        "quantization_config": {"quant_method": "fp8"},
    }
    hub = FromTheHub(declared, ends)
    monkeypatch.setattr("evalution_tensorrt_llm.load.import_runtime", lambda *_, **__: hub)
    found = read_checkpoint(Model("owner/name", revision="main"), None)
    assert (found.max_positions, found.vocabulary, found.dtype) == (64, 12, "float16")
    assert (found.quantization, found.revision) == ("fp8", "abc")
    assert found.eos_ids == expected
    with pytest.raises(ConfigurationError, match="no configuration could be loaded from 'owner/n"):
        read_checkpoint(Model("owner/none", revision="main"), None)


def test_quantization_of_a_model_on_the_hub_is_what_modelopts_file_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "hf_quant_config.json"
    file.write_text('{"quantization": {"quant_algo": "NVFP4"}}', encoding="utf-8")
    hub = FromTheHub({}, None)
    hub.utils.cached_file = lambda *_, **__: str(file)  # pyright: ignore
    monkeypatch.setattr("evalution_tensorrt_llm.load.import_runtime", lambda *_, **__: hub)
    found = read_checkpoint(Model("owner/name", revision="main"), None)
    assert found.quantization == "NVFP4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no config.json in"),
        ("{", "config.json is not valid JSON"),
        ("[]", "config.json is not a JSON object"),
        ("{}", "the model states no longest sequence; set max_model_len"),
    ],
)
def test_broken_configuration_is_refused(
    installed: Any, tmp_path: Path, text: str | None, message: str
) -> None:
    installed("1.2.1")
    if text is not None:
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message):
        TensorRTLLM().build(Model(str(tmp_path)))
