"""What options mean on the real runtime, and what is said where they can't be met."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalution_core import (
    Capability,
    ConfigurationError,
    EngineUnavailableError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    UnsupportedRequestError,
    builtin_path,
)
from evalution_openvino import OpenVINO

pytest.importorskip("optimum.intel", reason="optimum-intel is not installed")

TINY = Model(path="builtin:tiny")
PAIR = LoglikelihoodRequest("The cat", " sleeps.")


def _built(engine: OpenVINO, model: Model = TINY) -> Any:
    return engine.build(model)


def _refusal(engine: OpenVINO, model: Model = TINY) -> str:
    with pytest.raises(ConfigurationError) as caught:
        engine.build(model)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"pass_tokens": -1}, "pass_tokens=-1 must be at least 1"),
        ({"cache_size": 0}, "cache_size=0 must be at least 1"),
        ({"compile": False}, "compile=False: a session tries on the compiled model"),
        ({"dynamic_shapes": False}, "dynamic_shapes=False: Optimum Intel gives causal models"),
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
    ("model", "said"),
    [
        (Model(), "engine OpenVINO needs model.path"),
        (Model(path="./no/such"), "model folder './no/such' does not exist; give a folder with"),
        (
            Model(path="builtin:tiny", model_kwargs={"export": True, "device": "GPU"}),
            "model.model_kwargs may not hold device (set the engine's device), export (set nothing",
        ),
        (
            Model(path="builtin:tiny", model_kwargs={"load_in_8bit": True}),
            "genai=True: openvino-genai reads openvino_model.xml as it is, not with load_in_8bit",
        ),
    ],
)
def test_models_that_cannot_be_loaded_are_refused(model: Model, said: str) -> None:
    assert said in _refusal(OpenVINO(genai=True), model)


def test_a_folder_without_weights_is_no_model(tmp_path: Path) -> None:
    tiny = builtin_path("builtin:tiny", "safetensors")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny / name).read_bytes())
    said = _refusal(OpenVINO(), Model(path=str(tmp_path)))
    assert "no causal model for OpenVINO could be loaded from" in said


def test_a_device_that_is_not_there_is_told_with_those_that_are() -> None:
    for engine in (OpenVINO(device="XPU"), OpenVINO(device="AUTO:XPU,CPU")):
        for call in (engine.describe_runtime, lambda engine=engine: engine.build(TINY)):
            with pytest.raises(EngineUnavailableError) as caught:
                call()
            assert "isn't there: OpenVINO" in str(caught.value)
            assert "sees CPU" in str(caught.value)


def test_the_runtime_is_told_without_a_model() -> None:
    told = OpenVINO(device="cpu").describe_runtime()
    assert told["device"] == "CPU"
    assert told["version"].startswith("openvino 20")
    assert "optimum-intel" in told["version"]


@pytest.mark.parametrize("device", ["CPU", "AUTO", "AUTO:CPU"])
def test_float32_is_really_used(device: str) -> None:
    with _built(OpenVINO(dtype="float32", device=device, genai=False)) as session:
        told = session.describe_execution()
        assert (told["device"], told["dtype"]) == ("CPU", "float32")
        assert told["kv_cache_dtype"] == "float32"


def test_the_default_precision_is_told_and_holds_its_tolerance(tiny: Any) -> None:
    (exact,) = tiny.loglikelihood([PAIR])
    with _built(OpenVINO(genai=False)) as session:
        told = session.describe_execution()
        (found,) = session.loglikelihood([PAIR])
    assert told["dtype"] in ("bfloat16", "float16", "float32")
    # 0.105 nats was the most over all reference values of the tiny model, in bfloat16.
    assert found.logprob == pytest.approx(exact.logprob, abs=0.2 * exact.token_count)


def test_exported_files_answer_like_the_checkpoint(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optimum.intel.openvino import OVModelForCausalLM

    source = builtin_path("builtin:tiny", "safetensors")
    made = Path(tiny._model.model_save_dir)
    for file in (*made.glob("openvino_model.*"), *source.glob("*.json")):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(OVModelForCausalLM, "_export", None)
    with _built(OpenVINO(dtype="float32", genai=False), Model(path=str(tmp_path))) as session:
        assert session.loglikelihood([PAIR]) == tiny.loglikelihood([PAIR])
        assert session.describe_execution()["exported"] == "before"
        assert {"openvino_model.bin", "openvino_model.xml"} <= set(session.identity())
    assert tiny.describe_execution()["exported"] == "on load"
    assert "model.safetensors" in tiny.identity()


def test_what_was_exported_goes_with_the_last_model(write_checkpoint: Callable[..., Path]) -> None:
    import gc

    engine = OpenVINO(dtype="float32", genai=False)
    model = Model(path=str(write_checkpoint("gpt2")))
    first, second = _built(engine, model), _built(engine, model)
    folder = Path(first._model.model_save_dir)
    assert second._model.model_save_dir == first._model.model_save_dir
    first.close()
    gc.collect()
    assert folder.is_dir()
    second.close()
    gc.collect()
    assert not folder.exists()


def test_compressed_weights_are_asked_for() -> None:
    model = Model(path="builtin:tiny", model_kwargs={"load_in_8bit": True})
    with _built(OpenVINO(dtype="float32"), model) as session:
        told = session.describe_execution()
        (score,) = session.loglikelihood([PAIR])
        assert session.identity()["model_kwargs"] == {"load_in_8bit": True}
    assert "not with load_in_8bit" in told["fallback"]
    assert told["generation"] == "generate"
    assert score.token_count == 2


def test_without_genai_it_generates_in_fixed_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalution_openvino.building.GENAI", ">=9999")
    with pytest.raises(EngineUnavailableError, match=r'pip install "evalution-openvino\[genai\]"'):
        OpenVINO(genai=True).build(TINY)
    with _built(OpenVINO(dtype="float32")) as session:
        told = session.describe_execution()
        assert Capability.REFILL not in session.capabilities
    assert (told["batching"], told["generation"]) == ("fixed batches", "generate")
    assert "continuous batching: needs openvino-genai>=9999" in told["fallback"]


def test_genai_completes_what_fixed_batches_do(tiny: Any) -> None:
    requests = [
        GenerationRequest("1 + 2 =", max_new_tokens=1 + at % 9, stop=["\n"] if at % 2 else [])
        for at in range(12)
    ]
    expected = [output.text for output in tiny.generate(requests)]
    with _built(OpenVINO(dtype="float32", genai=True, batch_size=3)) as session:
        found = session.generate(requests)
        sampled = GenerationRequest("1 + 2 =", max_new_tokens=8, do_sample=True, seed=3)
        sampled.temperature = 1.5
        assert session.generate([sampled])[0].text == tiny.generate([sampled])[0].text
        told = session.describe_execution()
        session.gc()
        again = session.generate(requests)
    assert [output.text for output in found] == expected
    assert [output.text for output in again] == expected
    assert (told["batching"], told["generation"]) == ("continuous", "openvino-genai")
    assert told["scheduler"]["max_num_seqs"] == 3


def test_a_prompt_that_the_cache_cannot_hold_fails_alone() -> None:
    from evalution_core import EngineRuntimeError

    engine = OpenVINO(dtype="float32", genai=True, batch_size=2, enable_prefix_caching=False)
    with _built(engine) as session:
        session._generation_path._settings = {
            **session._generation_path._settings,
            "num_kv_blocks": 4,
        }
        long, short = "The cat sleeps. " * 40, "1 + 2 ="
        results: dict[str, Any] = dict(
            session.generate_continuous(
                (text, GenerationRequest(text, max_new_tokens=4)) for text in (long, short)
            )
        )
        assert results[short].text
        with pytest.raises(EngineRuntimeError, match="has no room for a prompt of"):
            raise results[long].error


def test_batch_sizes_change_no_text(tiny: Any) -> None:
    requests = [GenerationRequest(f"{at} + 2 =", max_new_tokens=6) for at in range(8)]
    texts = [[o.text for o in tiny.generate(requests, batch_size=n)] for n in (1, 3, 8)]
    assert texts[0] == texts[1] == texts[2]


def test_tools_are_refused(tiny: Any) -> None:
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

    monkeypatch.setattr("evalution_openvino.engine.import_runtime", broken)
    with pytest.raises(EngineUnavailableError, match="pip uninstall torchvision"):
        OpenVINO().build(TINY)


def test_nothing_is_written_to_stdout() -> None:
    code = (
        "from evalution_core import *\nfrom evalution_openvino import OpenVINO\n"
        "with OpenVINO(dtype='float32').build(Model(path='builtin:tiny')) as session:\n"
        "    session.generate([GenerationRequest('1 + 2 =', max_new_tokens=3)])\n"
        "    session.loglikelihood([LoglikelihoodRequest('a', ' b')])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""
