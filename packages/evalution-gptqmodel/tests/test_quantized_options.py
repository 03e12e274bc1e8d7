"""Options and checkpoints that the engine refuses, and the messages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from evalution_core import ConfigurationError, EngineUnavailableError, Model
from evalution_core.options import options_schema
from evalution_gptqmodel import GPTQModel, runtime
from evalution_gptqmodel.layers import dequantize
from evalution_gptqmodel.load import choose_dtype, load_model


@pytest.fixture
def copied(quantized: Path, tmp_path: Path) -> Path:
    """A copy of the quantised checkpoint that a test may damage."""
    return shutil.copytree(quantized, tmp_path / "copied")


def refusal(engine: GPTQModel, model: Model) -> str:
    with pytest.raises(ConfigurationError) as caught:
        engine.build(model)
    return str(caught.value)


def rewrite(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text("utf-8")) | changes
    file.write_text(json.dumps(content), "utf-8")


def test_a_model_needs_a_path() -> None:
    assert refusal(GPTQModel(), Model()) == (
        "engine GPTQModel needs model.path: the folder or the Hub id of a quantised checkpoint"
    )


def test_a_checkpoint_that_is_not_quantised_is_for_another_engine() -> None:
    assert refusal(GPTQModel(), Model(path="builtin:tiny")) == (
        "'builtin:tiny' isn't quantised: no quantization_config in its config.json and no "
        "quantize_config.json beside it; run it with the engine Transformers, or quantise it with "
        "GPTQModel first"
    )


@pytest.mark.parametrize("path", ["./nowhere", "/no/such/folder"])
def test_a_folder_that_is_not_there_is_named(path: str) -> None:
    assert refusal(GPTQModel(), Model(path=path)) == (
        f"model folder {path!r} does not exist; give the folder of a quantised checkpoint, or a "
        f"Hub id as in owner/name"
    )


def test_a_hub_id_that_is_not_cached_needs_the_network() -> None:
    message = refusal(GPTQModel(), Model(path="nobody/nothing-4bit"))
    assert message.startswith("no folder 'nobody/nothing-4bit' here, and the Hub gave none: ")


def test_weights_are_read_from_safetensors_alone(copied: Path) -> None:
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    assert refusal(GPTQModel(), Model(path=str(copied))) == (
        f"no weights in {str(copied)!r}: engine GPTQModel reads *.safetensors alone; save the "
        f"checkpoint in that format"
    )


def test_a_broken_configuration_is_named(copied: Path) -> None:
    (copied / "config.json").write_text("{", "utf-8")
    message = refusal(GPTQModel(), Model(path=str(copied)))
    assert message.startswith(f"{copied / 'config.json'} is not valid JSON: ")


def test_another_method_is_for_another_engine(copied: Path) -> None:
    rewrite(copied / "config.json", quantization_config={"quant_method": "compressed-tensors"})
    message = refusal(GPTQModel(), Model(path=str(copied)))
    assert message.startswith(
        f"{str(copied)!r} is quantised by 'compressed-tensors', and GPTQModel "
    )
    assert "awq" in message
    assert message.endswith("; the engine Transformers may load it")


def test_an_unknown_backend_is_refused_with_the_nearest(quantized: Path) -> None:
    message = refusal(GPTQModel(backend="gptq_torch_fussed"), Model(path=str(quantized)))
    assert message.startswith("backend='gptq_torch_fussed' is no backend of GPTQModel ")
    assert "; did you mean 'gptq_torch_fused'?" in message
    assert "vllm" not in message


def test_an_unknown_backend_is_refused_with_all_there_are(quantized: Path) -> None:
    message = refusal(GPTQModel(backend="zzz"), Model(path=str(quantized)))
    assert ", which has auto, " in message
    assert "gptq_torch" in message


@pytest.mark.parametrize("backend", ["vllm", "SGLANG", "mlx"])
def test_a_backend_with_a_runtime_of_its_own_is_refused(quantized: Path, backend: str) -> None:
    message = refusal(GPTQModel(backend=backend), Model(path=str(quantized)))
    assert message.startswith(f"backend={backend!r} is no backend of GPTQModel ")


def test_a_backend_that_does_not_suit_is_refused_in_upstreams_words(quantized: Path) -> None:
    engine = GPTQModel(backend="gptq_torch", dtype="float32", device="cpu")
    message = refusal(engine, Model(path=str(quantized)))
    assert "no quantised model with backend=gptq_torch, device=cpu, dtype=" in message
    assert f"could be loaded from {str(quantized)!r}" in message
    assert "only supports `[torch.float16, torch.bfloat16]`" in message


@pytest.mark.parametrize(
    ("asked", "found", "device", "method", "given"),
    [
        ("auto", "float32", "cuda", "gptq", "float16"),
        ("auto", None, "cuda", "awq", "float16"),
        ("auto", "float32", "cuda", "fp8", "float32"),
        ("auto", "bfloat16", "cuda", "gptq", "bfloat16"),
        ("float32", "float32", "cuda", "gptq", "float32"),
        ("auto", "float32", "xpu", "gptq", "float32"),
        ("auto", None, "cpu", "gptq", "float32"),
    ],
)
def test_a_gpu_gets_float16_where_no_kernel_takes_float32(
    asked: Any, found: str | None, device: str, method: str, given: str
) -> None:
    engine = GPTQModel(dtype=asked)
    assert choose_dtype(engine, found, torch.device(device), method) == given


@pytest.mark.parametrize(
    ("options", "arguments"),
    [({"backend": "gptq_torch"}, {}), ({}, {"device_map": "auto"})],
)
def test_dequantized_layers_have_no_kernels_to_choose(
    quantized: Path, options: dict[str, Any], arguments: dict[str, Any]
) -> None:
    engine = GPTQModel(dequantize=True, **options)
    assert refusal(engine, Model(path=str(quantized), model_kwargs=arguments)) == (
        "dequantize=True leaves no quantised layer for backend or model_kwargs device_map to "
        "place; leave both out"
    )


def test_dequantized_weights_are_cast_without_the_rotary_frequencies(quantized: Path) -> None:
    engine = GPTQModel(device="cpu", dtype="bfloat16", dequantize=True)
    loaded: Any = load_model(engine, Model(path=str(quantized))).model
    assert {weights.dtype for weights in loaded.parameters()} == {torch.bfloat16}
    buffers = {name.rpartition(".")[2]: found.dtype for name, found in loaded.named_buffers()}
    assert buffers["inv_freq"] == torch.float32


def test_a_layer_without_readable_weights_is_named() -> None:
    layer = torch.nn.Linear(2, 2)
    # As if it were one of GPTQModel's, of a format that keeps its weights to itself.
    kernel = type("SealedLinear", (torch.nn.Linear,), {"__module__": "gptqmodel.nn_modules.sealed"})
    layer.__class__ = kernel
    with pytest.raises(ConfigurationError) as caught:
        dequantize(torch.nn.Sequential(layer), runtime.find_packable_layer())
    assert str(caught.value) == (
        "dequantize=True: layer 0 is a SealedLinear, whose weights can't be read; it takes a "
        "checkpoint in GPTQ's own format, without online rotation. Leave dequantize out to run it "
        "on its kernels"
    )


def test_arguments_with_an_option_of_their_own_are_refused(quantized: Path) -> None:
    def message(name: str) -> str:
        return refusal(GPTQModel(), Model(path=str(quantized), model_kwargs={name: None}))

    assert message("revision") == "model.model_kwargs may not hold revision: it is model.revision"
    assert message("backend").endswith("backend: it is an option of the engine")
    assert message("quantize_config").endswith(
        "the engine runs checkpoints that are quantised already"
    )
    assert message("adapter").endswith("merge it into the model before it is quantised")
    assert message("trust_remote_code").endswith("it is model.trust_remote_code")


def test_an_argument_that_the_loader_drops_is_refused(quantized: Path) -> None:
    model = Model(
        path=str(quantized), model_kwargs={"max_memory": {0: "8GiB"}, "device_map": "cpu"}
    )
    assert refusal(GPTQModel(), model) == (
        "model.model_kwargs: GPTQModel's loader does nothing with max_memory for a quantised "
        "checkpoint; it takes device_map, format"
    )


def test_device_and_device_map_together_are_refused(quantized: Path) -> None:
    model = Model(path=str(quantized), model_kwargs={"device_map": "auto"})
    assert refusal(GPTQModel(device="cpu"), model) == (
        "device='cpu' and model.model_kwargs device_map say where the model goes; set one of them"
    )


def test_code_of_a_checkpoint_is_not_run(copied: Path) -> None:
    (copied / "modeling_own.py").write_text("raise SystemExit('was run')", "utf-8")
    rewrite(
        copied / "config.json",
        model_type="own",
        auto_map={"AutoConfig": "modeling_own.C", "AutoModelForCausalLM": "modeling_own.M"},
    )
    assert "trust_remote_code" in refusal(GPTQModel(device="cpu"), Model(path=str(copied)))


def refuse_without(folder: Path, name: str) -> str:
    """Take weights out of a checkpoint, and return the refusal."""
    file = folder / "model.safetensors"
    kept = {key: value for key, value in load_file(file).items() if not key.startswith(name)}
    save_file(kept, file)
    return refusal(GPTQModel(device="cpu"), Model(path=str(folder)))


def test_a_checkpoint_that_lacks_weights_is_refused(copied: Path) -> None:
    assert refuse_without(copied, "lm_head.weight") == (
        f"the checkpoint {str(copied)!r} lacks 1 weights of its model (lm_head.weight); its "
        f"answers would be those of random ones"
    )


def test_a_checkpoint_that_lacks_quantised_weights_is_refused(copied: Path) -> None:
    message = refuse_without(copied, "model.layers.1.mlp.up_proj")
    assert "could be loaded from" in message
    assert "Missing required quantized weights" in message
    assert "model.layers.1.mlp.up_proj.qweight" in message


@pytest.mark.parametrize("name", ["batch_size", "pass_tokens", "cache_tokens", "max_batch_tokens"])
def test_counts_are_at_least_one(name: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"option '{name}' of engine GPTQModel must be at least 1"
    ):
        GPTQModel(**{name: 0})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("option", [{"adapter": "./lora"}, {"dtype": "float64"}])
def test_options_of_transformers_that_quantised_weights_lack_are_refused(
    option: dict[str, Any],
) -> None:
    with pytest.raises(ConfigurationError, match=f"option '{next(iter(option))}'"):
        GPTQModel(**option)


def test_every_option_has_a_description() -> None:
    properties = options_schema(GPTQModel)["properties"]
    assert {"backend", "dequantize", "batch_size"} <= properties.keys()
    assert all(shown.get("description") for shown in properties.values())


@pytest.mark.parametrize("batch_size", ["auto", None, 2])
def test_a_suite_runs_with_any_batch_size(quantized: Path, batch_size: Any) -> None:
    evalution = pytest.importorskip("evalution", reason="evalution is not installed")
    prose = evalution.suites.Perplexity(data="builtin:tiny/prose", text="text", max_rows=1)
    engine = GPTQModel(device="cpu", batch_size=batch_size)
    started: Any = engine.model(path=str(quantized))
    with started.run(prose) as run:
        assert run.result.suites[0].metrics


def test_manager_options_contradict_paged_false() -> None:
    engine = GPTQModel(paged=False, allow_block_sharing=True, cache_tokens=64)
    assert refusal(engine, Model(path="any/thing")) == (
        "allow_block_sharing, cache_tokens: for upstream's manager alone, and paged=False keeps it "
        "off"
    )


def test_a_window_beyond_the_models_own_is_refused(quantized: Path) -> None:
    engine = GPTQModel(device="cpu", max_model_len=513)
    assert refusal(engine, Model(path=str(quantized))) == (
        "max_model_len=513 must be between 2 and the model's own 512"
    )


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_a_missing_device_is_unavailable(quantized: Path) -> None:
    with pytest.raises(
        EngineUnavailableError, match=r"device='cuda' isn't there: torch .* sees cpu"
    ):
        GPTQModel(device="cuda").build(Model(path=str(quantized)))


def test_an_older_gptqmodel_is_refused_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "GPTQMODEL", ">=99")
    with pytest.raises(
        EngineUnavailableError, match=r"needs gptqmodel>=99, found gptqmodel .*; pip install evalu"
    ):
        GPTQModel().describe_runtime()


def test_the_runtime_is_described_without_a_model() -> None:
    message = GPTQModel(device="cpu").describe_runtime()
    assert message["device"] == "cpu"
    assert [part.split()[0] for part in message["version"].split(", ")] == [
        "gptqmodel",
        "transformers",
        "torch",
    ]
