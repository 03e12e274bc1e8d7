"""Options, devices, files and errors of the llama.cpp engine."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from evalution import Run
from evalution.suites import Generation
from evalution_core import (
    ConfigurationError,
    EngineUnavailableError,
    GenerationRequest,
    Model,
    SessionClosedError,
)
from evalution_core.builtins import builtin_path
from evalution_llama_cpp import LlamaCpp

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from evalution_llama_cpp.arguments import (
    CacheTypes,
    choose_cache_types,
    find_dtype,
    make_context_params,
    make_model_params,
)
from evalution_llama_cpp.runtime import GPU, LOG, Device, choose_device, find_gpus, load_library

TINY = Model("builtin:tiny")
FOLDER = builtin_path("builtin:tiny", "safetensors")


def gpus(*names: str, integrated: str | None = None) -> dict[str, GPU]:
    return {name: GPU(at, name == integrated) for at, name in enumerate(names)}


def test_present_device_is_chosen() -> None:
    present = gpus("CUDA0", "CUDA1", "Vulkan0", "Vulkan1")
    cards = ("CUDA0", "CUDA1")
    assert choose_device("auto", present, strict=True) == Device("CUDA0", True, cards)
    assert choose_device("vulkan", present, strict=True).gpus == ("Vulkan0", "Vulkan1")
    assert choose_device("mlx", gpus("MTL0"), strict=True) == Device("MTL0", True, ("MTL0",))
    assert choose_device("cpu", present, strict=True) == Device("cpu", offloads=False)
    assert choose_device("auto", {}, strict=True) == Device("cpu", offloads=False)


@pytest.mark.parametrize("asked", ["auto", "vulkan"])
def test_integrated_gpu_is_taken_only_where_no_other_fits(asked: Any) -> None:
    both = gpus("Vulkan0", "Vulkan1", integrated="Vulkan0")
    assert choose_device(asked, both, strict=True) == Device("Vulkan1", True, ("Vulkan1",))
    alone = gpus("Vulkan0", integrated="Vulkan0")
    assert choose_device(asked, alone, strict=True) == Device("Vulkan0", True, ("Vulkan0",))


def test_gpus_are_found_with_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"CPU": 0, "Vulkan0": 1, "Vulkan1": 2}
    registry = SimpleNamespace(
        ggml_backend_dev_count=lambda: len(kinds),
        ggml_backend_dev_get=lambda at: at,
        ggml_backend_dev_name=lambda at: list(kinds)[at].encode(),
        ggml_backend_dev_type=lambda at: list(kinds.values())[at],
    )
    monkeypatch.setattr("evalution_llama_cpp.runtime._load_registry", lambda: registry)
    library: Any = SimpleNamespace(llama_supports_gpu_offload=lambda: True)
    assert find_gpus(library) == {"Vulkan0": GPU(1), "Vulkan1": GPU(2, is_integrated=True)}


def test_missing_device_becomes_the_cpu_with_a_notice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "evalution_llama_cpp"):
        device = choose_device("cuda", gpus("Vulkan0"), strict=False)
    assert (device.name, device.offloads) == ("cpu", False)
    assert device.fallback is not None
    assert 'sees Vulkan0; for it, install with CMAKE_ARGS="-DGGML_CUDA=on"' in device.fallback
    assert "running on the CPU (strict_device=True makes this an error)" in caplog.text


def test_missing_strict_device_is_an_error() -> None:
    with pytest.raises(EngineUnavailableError, match=r"device='metal' isn't .* sees no GPU"):
        choose_device("metal", {}, strict=True)


def test_session_describes_the_fallback() -> None:
    if load_library().llama_supports_gpu_offload():
        pytest.skip("this build of llama-cpp-python has a GPU backend")
    with LlamaCpp(device="cuda", n_threads=1).build(TINY) as session:
        described = session.describe_execution()
    assert described["device"] == "cpu"
    assert "device='cuda' isn't there" in described["device_fallback"]
    assert described["fallback"] == described["device_fallback"]
    assert described["requested_device"] == "cuda"
    with pytest.raises(EngineUnavailableError):
        LlamaCpp(device="cuda", strict_device=True).build(TINY)
    assert LlamaCpp(device="cpu").describe_runtime()["gpus"] == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rope_freq_bse": 1.0}, "no parameter 'rope_freq_bse'; did you mean 'rope_freq_base'"),
        ({"n_ctx": 8}, "may not hold 'n_ctx': set the engine's n_ctx"),
        ({"load_mode": 1}, "set the engine's use_mmap and use_mlock"),
        ({"kv_unified": False}, "may not hold 'kv_unified': the engine decides it itself"),
        ({"swa_full": False}, "may not hold 'swa_full': the engine decides it itself"),
        ({"op_offload": 3}, "'op_offload' must be a bool, got 3"),
        ({"yarn_orig_ctx": True}, "'yarn_orig_ctx' must be a int, got True"),
    ],
)
def test_llama_kwargs_are_checked_by_name_and_type(given: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LlamaCpp(device="cpu", llama_kwargs=given).build(TINY)


def test_llama_kwargs_reach_the_model() -> None:
    request = GenerationRequest("The cat", max_new_tokens=12)
    texts: list[str] = []
    for base in (65536.0, 10.0):
        engine = LlamaCpp(device="cpu", n_threads=1, llama_kwargs={"rope_freq_base": base})
        with engine.build(TINY) as session:
            texts.append(session.generate([request])[0].text)
    with LlamaCpp(device="cpu", n_threads=1).build(TINY) as session:
        own = session.generate([request])[0].text
    assert texts[0] == own
    assert texts[1] != own


def test_options_arrive_under_llama_cpps_names() -> None:
    engine = LlamaCpp(
        n_batch=96,
        n_ubatch=48,
        n_threads=3,
        n_threads_batch=5,
        n_gpu_layers=7,
        main_gpu=1,
        split_mode="row",
        tensor_split=(0.25, 0.75),
        flash_attn=True,
        offload_kqv=False,
        use_mmap=False,
        use_mlock=True,
        type_k="q8_0",
        type_v="bf16",
    )
    device = Device("cuda", offloads=True, gpus=("CUDA0", "CUDA1"))
    library = load_library()
    model: Any = make_model_params(library, engine, [11, 12])
    context: Any = make_context_params(
        library, engine, device, CacheTypes("q8_0", "bf16"), n_ctx=256, sequences=9
    )
    assert (model.n_gpu_layers, model.main_gpu, model.split_mode) == (7, 1, 2)
    assert (model.tensor_split[0], model.tensor_split[1], model.load_mode) == (0.25, 0.75, 2)
    assert list(model.listed) == [11, 12, None]
    assert (context.n_ctx, context.n_batch, context.n_ubatch) == (256, 96, 48)
    assert (context.n_threads, context.n_threads_batch, context.n_seq_max) == (3, 5, 9)
    assert (context.flash_attn_type, context.offload_kqv) == (1, False)
    assert (context.type_k, context.type_v, context.kv_unified) == (8, 30, True)
    # Without a GPU nothing is offloaded, whatever was asked for.
    assert make_model_params(library, engine, []).n_gpu_layers == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_batch": 0}, "option 'n_batch' of engine LlamaCpp must be at least 1, got 0"),
        ({"n_ctx": 2**32 + 64}, "option 'n_ctx' of engine LlamaCpp must be at most 2147483647"),
        ({"max_model_len": 1}, "'max_model_len' of engine LlamaCpp must be at least 2, got 1"),
        ({"batch_size": 0}, "'batch_size' of engine LlamaCpp must be at least 1 or 'auto', got 0"),
        ({"type_k": "q9"}, "type_k"),
        ({"device": "tpu"}, "device"),
        ({"flash_atn": True}, "no option 'flash_atn'; did you mean 'flash_attn'"),
    ],
)
def test_options_are_checked_at_construction(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LlamaCpp(**options)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model_kwargs", "go into the engine's llama_kwargs"),
        ("tokenizer_kwargs", "a file's own tokenizer takes none; set tokenizer_path too"),
    ],
)
def test_a_field_of_the_model_that_would_be_ignored_is_refused(name: str, message: str) -> None:
    model = Model("builtin:tiny", **{name: {"a": 1}})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match=message):
        LlamaCpp(device="cpu").build(model)


def test_refused_file_is_reported_in_llama_cpps_words(tmp_path: Path) -> None:
    content = builtin_path("builtin:tiny", "gguf").read_bytes()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(content.replace(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight"))
    with pytest.raises(ConfigurationError, match=r"can't load .*broken.gguf: .*attn_q"):
        LlamaCpp(device="cpu").build(Model(str(broken)))


def test_cache_type_that_needs_flash_attention_is_refused_without() -> None:
    with pytest.raises(ConfigurationError, match=r"can't make a context .* need flash_attn"):
        LlamaCpp(device="cpu", type_v="q8_0").build(TINY)
    with LlamaCpp(device="cpu", type_v="q8_0", flash_attn=True).build(TINY) as session:
        assert session.check().outcome == "passed"
        assert session.describe_execution()["dtype"] == "Q8_0"


def test_the_window_is_what_cache_and_model_hold() -> None:
    cases: list[tuple[Any, int]] = [({}, 512), ({"n_ctx": 100}, 100), ({"max_model_len": 64}, 64)]
    for options, window in cases:
        with LlamaCpp(device="cpu", n_threads=1, **options).build(TINY) as session:
            assert session.info.max_model_len == window
    with pytest.raises(ConfigurationError, match=r"max_model_len=200 must be .* the n_ctx of 100"):
        LlamaCpp(device="cpu", n_ctx=100, max_model_len=200).build(TINY)
    with pytest.raises(ConfigurationError, match="must be between 2 and the n_ctx of 1"):
        LlamaCpp(device="cpu", n_ctx=1).build(TINY)


def test_n_ctx_of_zero_is_what_the_model_was_trained_on() -> None:
    with LlamaCpp(device="cpu", n_threads=1, n_ctx=0).build(TINY) as session:
        assert session.describe_execution()["kv_cache"]["cells"] == 512


@pytest.mark.parametrize(
    ("weights", "options", "expected"),
    [
        ("F32", {}, "float32"),
        ("F32", {"type_k": "f16"}, "float16"),
        ("F32", {"type_k": "f32", "type_v": "f32", "flash_attn": True}, "float16"),
        ("BF16", {}, "bfloat16"),
        ("BF16", {"type_k": "f16", "type_v": "f16"}, "bfloat16"),
        ("Q4_K", {}, "Q4_K"),
    ],
)
def test_dtype_is_the_least_precise_of_all(weights: str, options: Any, expected: str) -> None:
    engine = LlamaCpp(**options)
    cpu = Device("cpu", offloads=False)
    cache = choose_cache_types(engine, cpu, weights)
    assert find_dtype(weights, engine, cache, cpu) == expected


@pytest.mark.parametrize(
    ("weights", "expected"), [("F32", "float32, products in TF32"), ("F16", "float16")]
)
def test_float32_on_cuda_is_recorded_with_the_products_it_gets(weights: str, expected: str) -> None:
    card = Device("CUDA0", offloads=True, gpus=("CUDA0",))
    cache = choose_cache_types(LlamaCpp(), card, weights)
    assert find_dtype(weights, LlamaCpp(), cache, card) == expected


@pytest.mark.parametrize(
    ("device", "weights", "options", "expected"),
    [
        (Device("cpu", offloads=False), "Q4_K", {}, ("f32", "f32")),
        (Device("cpu", offloads=False), "F32", {"type_v": "f16"}, ("f32", "f16")),
        (Device("cpu", offloads=False), "F32", {"flash_attn": None}, ("f16", "f16")),
        (Device("cuda", offloads=True), "F32", {}, ("f32", "f32")),
        (Device("cuda", offloads=True), "BF16", {}, ("f16", "f16")),
        (Device("cuda", offloads=True), "Q4_K", {"type_k": "f32"}, ("f32", "f16")),
    ],
)
def test_cache_without_flash_attention_is_f32_on_a_cpu_and_for_f32_weights(
    device: Device, weights: str, options: Any, expected: Any
) -> None:
    assert choose_cache_types(LlamaCpp(**options), device, weights) == CacheTypes(
        k=expected[0], v=expected[1]
    )


def test_a_tokenizer_by_path_takes_the_place_of_the_files() -> None:
    named = Model("builtin:tiny", tokenizer_path=str(FOLDER))
    request = GenerationRequest(messages=[{"role": "user", "content": "2 + 3?"}], max_new_tokens=8)
    with LlamaCpp(device="cpu", n_threads=1).build(named) as session:
        by_path = session.generate([request])[0]
        identity = session.identity()
    with LlamaCpp(device="cpu", n_threads=1).build(TINY) as session:
        own = session.generate([request])[0]
        files = session.identity()
    assert (by_path.prompt, by_path.text) == (own.prompt, own.text)
    assert files is not None
    assert identity is not None
    assert files.items() < identity.items()
    assert "tokenizer/tokenizer.json" in identity


def test_identity_holds_the_templates_variables(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "named")
    (tmp_path / "named" / "chat_template.jinja").write_text("{{ tone }}")
    named = str(tmp_path / "named")
    for tone in ("low", "high"):
        model = Model("builtin:tiny", tokenizer_path=named, chat_template_kwargs={"tone": tone})
        with LlamaCpp(device="cpu", n_threads=1).build(model) as session:
            identity = session.identity()
        assert identity is not None
        assert identity["chat_template_kwargs"] == {"tone": tone}


def test_a_tokenizer_outlives_its_session_without_a_crash() -> None:
    session = LlamaCpp(device="cpu", n_threads=1).build(TINY)
    tokenizer = session.tokenizer
    session.close()
    with pytest.raises(SessionClosedError, match="the model of this tokenizer was closed"):
        tokenizer.encode("The cat")


def test_one_request_and_two_render_chat_alike() -> None:
    request = GenerationRequest(messages=[{"role": "user", "content": "Hi"}], max_new_tokens=2)
    with LlamaCpp(device="cpu", n_threads=1).build(TINY) as session:
        (alone,) = session.generate([request])
        together = session.generate([request, request])
        ids = session.tokenizer.encode(alone.prompt)
    assert [output.prompt for output in together] == [alone.prompt] * 2
    assert alone.prompt_tokens == len(ids)
    assert [i for i in ids if i == session.tokenizer.bos_id] == [session.tokenizer.bos_id]


def test_log_is_printed_only_if_verbose(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with LlamaCpp(device="cpu", n_threads=1).build(TINY):
        assert capfd.readouterr().err == ""
    with LlamaCpp(device="cpu", n_threads=1, verbose=True).build(TINY):
        assert "llama" in capfd.readouterr().err
    LOG.echo = False


@pytest.mark.parametrize("batch_size", [None, "auto", 2])
def test_any_batch_size_runs_a_suite_through_the_engines_model(
    batch_size: int | Literal["auto"] | None,
) -> None:
    suite = Generation(
        data="builtin:tiny/sums",
        prompt="Question: {question}\nAnswer:",
        target="answer",
        max_new_tokens=48,
        max_rows=3,
    )
    engine = LlamaCpp(device="cpu", n_threads=1, batch_size=batch_size)
    with engine.model(path="builtin:tiny") as run:
        assert isinstance(run, Run)
        run.run(suite)
    assert run.result["sums"].metrics["exact_match"].n == 3


def test_every_option_has_a_description() -> None:
    described = LlamaCpp.options_schema()["properties"]
    assert all(option["description"] for option in described.values())
