"""Options on the real runtime, and the refusal of those that it can't meet."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalution_core import (
    ConfigurationError,
    EngineUnavailableError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    UnsupportedRequestError,
)
from evalution_core.builtins import builtin_path
from evalution_core.options import options_schema
from evalution_openvino import OpenVINO
from evalution_openvino.runtime import make_compile_properties, make_hints

pytest.importorskip("optimum.intel", reason="optimum-intel is not installed")

TINY = Model(path="builtin:tiny")
PAIR = LoglikelihoodRequest("The cat", " sleeps.")


def _build(engine: OpenVINO, model: Model = TINY) -> Any:
    return engine.build(model)


def _refusal(engine: OpenVINO, model: Model = TINY) -> str:
    with pytest.raises(ConfigurationError) as caught:
        engine.build(model)
    return str(caught.value)


# Holding the tiny model's export, which some of these would make again.
@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"genai": False, "cache_size": 1, "enable_prefix_caching": True},
            "cache_size, enable_prefix_caching: for openvino-genai alone, and genai=False",
        ),
        (
            {"dtype": "float32", "ov_config": {"INFERENCE_PRECISION_HINT": "bf16"}},
            "dtype='float32' and ov_config INFERENCE_PRECISION_HINT both say the precision",
        ),
        ({"max_model_len": 100_000}, "max_model_len=100000 must be between 2 and"),
        ({"ov_config": {"NO_SUCH": "1"}}, "NotFound: Unsupported property NO_SUCH by CPU plugin"),
    ],
)
def test_options_that_cannot_be_met_are_refused(options: dict[str, Any], said: str) -> None:
    assert said in _refusal(OpenVINO(**options))


@pytest.mark.parametrize(
    "option",
    [
        {"batch_size": 0},
        {"pass_tokens": -1},
        {"cache_size": 0},
        {"max_model_len": 1},
    ],
)
def test_an_option_outside_its_bounds_is_refused_at_construction(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"option '{next(iter(option))}' of engine Open"):
        OpenVINO(**option)


def test_every_option_has_a_description() -> None:
    properties = options_schema(OpenVINO)["properties"]
    assert all(shown.get("description") for shown in properties.values())


@pytest.mark.parametrize("batch_size", ["auto", None, 2])
def test_a_suite_runs_with_any_batch_size(tiny: Any, batch_size: Any) -> None:
    evalution = pytest.importorskip("evalution", reason="evalution is not installed")
    prose = evalution.suites.Perplexity(data="builtin:tiny/prose", text="text", max_rows=1)
    started: Any = OpenVINO(batch_size=batch_size).model(path="builtin:tiny")
    with started.run(prose) as run:
        assert run.result.suites[0].metrics


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Model(), "engine OpenVINO needs model.path"),
        (Model(path="./no/such"), "model folder './no/such' does not exist; give a folder with"),
        (
            Model(path="builtin:tiny", model_kwargs={"device": "GPU"}),
            "model.model_kwargs may not hold device: it is an option of the engine",
        ),
        (
            Model(path="builtin:tiny", model_kwargs={"dtype": "bfloat16"}),
            "model.model_kwargs: OVModelForCausalLM takes no dtype; it takes cache_dir, ",
        ),
        (
            Model(path="builtin:tiny", model_kwargs={"subfolder": "ov"}),
            "model.model_kwargs subfolder='ov' isn't in ",
        ),
        (
            Model(path="builtin:tiny", model_kwargs={"load_in_8bit": True}),
            "genai=True: openvino-genai reads openvino_model.xml as it is, not with load_in_8bit",
        ),
    ],
)
def test_models_that_cannot_be_loaded_are_refused(model: Model, said: str) -> None:
    assert said in _refusal(OpenVINO(genai=True), model)


def test_a_missing_device_is_refused_with_those_there_are() -> None:
    for engine in (OpenVINO(device="XPU"), OpenVINO(device="AUTO:XPU,CPU")):
        for call in (engine.describe_runtime, lambda engine=engine: engine.build(TINY)):
            with pytest.raises(EngineUnavailableError) as caught:
                call()
            assert "isn't there: OpenVINO" in str(caught.value)
            assert "sees CPU" in str(caught.value)


def test_the_runtime_is_described_without_a_model() -> None:
    execution = OpenVINO(device="cpu").describe_runtime()
    assert execution["device"] == "CPU"
    assert execution["version"].startswith("openvino 20")
    assert "optimum-intel" in execution["version"]


@pytest.mark.parametrize("device", ["CPU", "AUTO", "AUTO:CPU"])
def test_float32_is_the_precision_in_use(device: str) -> None:
    with _build(OpenVINO(dtype="float32", device=device, genai=False)) as session:
        execution = session.describe_execution()
        assert (execution["device"], execution["dtype"]) == ("CPU", "float32")
        assert execution["kv_cache_dtype"] == "float32"


def test_narrower_cache_is_asked_for_by_name_and_recorded() -> None:
    with _build(OpenVINO(ov_config={"KV_CACHE_PRECISION": "u8"}, genai=False)) as session:
        assert session.describe_execution()["dtype"] == "float32, cache in u8"


def test_precision_of_ov_config_takes_the_place_of_the_checkpoints() -> None:
    import transformers

    from evalution_openvino.load import choose_dtype

    config = transformers.AutoConfig.from_pretrained(builtin_path("builtin:tiny", "safetensors"))
    assert choose_dtype(OpenVINO(), config, None) == "float32"
    options = OpenVINO(ov_config={"INFERENCE_PRECISION_HINT": "bf16"})
    assert choose_dtype(options, config, None) is None
    assert make_compile_properties("CPU", options, None) == {"INFERENCE_PRECISION_HINT": "bf16"}


def test_device_without_the_arithmetic_computes_in_float32() -> None:
    class Core:
        """A CPU without float16, and a GPU without bfloat16."""

        available_devices = ("CPU", "GPU")

        def get_property(self, device: str, name: str) -> list[str]:
            if name == "OPTIMIZATION_CAPABILITIES":
                return ["FP32", "BF16"] if device == "CPU" else ["FP32", "FP16"]
            return ["INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION"]

    for device, dtype, hint in (
        ("CPU", "float16", "f32"),
        ("CPU", "bfloat16", "bf16"),
        ("GPU", "float16", "f16"),
        ("GPU", "bfloat16", "f32"),
    ):
        hints = make_hints(Core(), device, dtype)
        assert hints == {"INFERENCE_PRECISION_HINT": hint, "KV_CACHE_PRECISION": hint}


def test_exported_files_answer_like_the_checkpoint(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optimum.intel.openvino import OVModelForCausalLM

    source = builtin_path("builtin:tiny", "safetensors")
    made = Path(tiny._model.model_save_dir)
    for file in (*made.glob("openvino_model.*"), *source.glob("*.json")):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(OVModelForCausalLM, "_export", None)
    with _build(OpenVINO(dtype="float32", genai=False), Model(path=str(tmp_path))) as session:
        assert session.loglikelihood([PAIR]) == tiny.loglikelihood([PAIR])
        assert session.describe_execution()["exported"] == "before"
        assert {"openvino_model.bin", "openvino_model.xml"} <= set(session.identity())
    assert tiny.describe_execution()["exported"] == "on load"
    assert "model.safetensors" in tiny.identity()


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    tiny = builtin_path("builtin:tiny", "safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny / name).read_bytes())
    said = _refusal(OpenVINO(), Model(path=str(tmp_path)))
    assert said.startswith("no model in ")
    assert said.endswith(": neither openvino_model.xml nor the config.json of a checkpoint")
    named = Model(path=str(tmp_path), model_kwargs={"file_name": "other.xml"})
    said = _refusal(OpenVINO(genai=False), named)
    assert "model.model_kwargs file_name='other.xml' isn't in " in said


@pytest.mark.parametrize("weights", [None, b"123"], ids=["none", "broken"])
def test_a_failed_export_removes_its_folder(
    weights: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = builtin_path("builtin:tiny", "safetensors")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny / name).read_bytes())
    if weights is not None:
        (tmp_path / "model.safetensors").write_bytes(weights)
    made = tmp_path / "made"
    made.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(made))
    # Held, as the caller of a failed run may hold it.
    with pytest.raises(ConfigurationError) as caught:
        OpenVINO().build(Model(path=str(tmp_path)))
    assert "no causal model for OpenVINO could be loaded from" in str(caught.value)
    assert not list(made.iterdir())


def test_a_checkpoint_that_lacks_weights_is_refused(
    write_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "lacking"
    shutil.copytree(write_checkpoint("llama"), folder)
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    message = _refusal(OpenVINO(), Model(str(folder)))
    assert message.startswith(f"the checkpoint {str(folder)!r} lacks 1 weights of a causal model")
    assert "(lm_head.weight); its answers would be those of random ones" in message


def test_an_export_is_removed_with_its_last_model(write_checkpoint: Callable[..., Path]) -> None:
    import gc

    engine = OpenVINO(dtype="float32", genai=False)
    model = Model(path=str(write_checkpoint("gpt2")))
    first, second = _build(engine, model), _build(engine, model)
    folder = Path(first._model.model_save_dir)
    assert second._model.model_save_dir == first._model.model_save_dir
    first.close()
    gc.collect()
    assert folder.is_dir()
    second.close()
    gc.collect()
    assert not folder.exists()


def test_weights_are_compressed_only_on_request(tiny: Any) -> None:
    assert tiny.describe_execution()["quantization"] is None
    model = Model(path="builtin:tiny", model_kwargs={"load_in_8bit": True})
    with _build(OpenVINO(dtype="float32"), model) as session:
        execution = session.describe_execution()
        (score,) = session.loglikelihood([PAIR])
        assert session.identity()["model_kwargs"] == {"load_in_8bit": True}
    assert "not with load_in_8bit" in execution["fallback"]
    assert execution["generation"] == "generate"
    assert execution["quantization"] == "u8 weights"
    assert execution["dtype"] == "float32, u8 weights"
    assert score.token_count == 2


def test_batch_sizes_change_no_text(tiny: Any) -> None:
    requests = [GenerationRequest(f"{at} + 2 =", max_new_tokens=6) for at in range(8)]
    texts = [[o.text for o in tiny.generate(requests, batch_size=n)] for n in (1, 3, 8)]
    assert texts[0] == texts[1] == texts[2]


def test_log_probabilities_of_a_search_are_refused(tiny: Any) -> None:
    request = GenerationRequest("a", num_beams=2, logprobs=1)
    with pytest.raises(UnsupportedRequestError, match="beam search gives no log-probabilities"):
        tiny.generate([request])


@pytest.mark.parametrize("module", ["intel", "exporters"])
def test_a_torchvision_of_another_torch_is_named(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str, *_: Any, **__: Any) -> Any:
        if module in name:
            raise EngineUnavailableError("can't be imported: operator torchvision::nms isn't there")

    monkeypatch.setattr("evalution_openvino.runtime.import_runtime", broken)
    with pytest.raises(EngineUnavailableError, match="pip uninstall torchvision"):
        OpenVINO().build(TINY)


def test_nothing_is_written_to_stdout() -> None:
    code = (
        "from evalution_core import *\nfrom evalution_openvino import OpenVINO\n"
        "plain = OpenVINO(dtype='float32').build(Model(path='builtin:tiny'))\n"
        "rounded = Model(path='builtin:tiny', model_kwargs={'load_in_8bit': True})\n"
        "for session in (plain, OpenVINO().build(rounded)):\n"
        "    session.generate([GenerationRequest('1 + 2 =', max_new_tokens=3)])\n"
        "    session.loglikelihood([LoglikelihoodRequest('a', ' b')])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""
