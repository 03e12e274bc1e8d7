"""The engine that a model gets where nobody names one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evalution.doctor import engine_choice
from evalution.doctor.engine_choice import choose_engine, classify_model
from evalution.doctor.engines import Needed
from evalution.doctor.machine import Machine
from evalution_core import ConfigurationError, EngineUnavailableError
from evalution_core.discovery import ENGINES
from evalution_core.plugins import PluginEntry

ALL = ("GPTQModel", "LlamaCpp", "OpenVINO", "Reference", "Tinygrad", "Transformers", "VLLM")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine with these engines, packages that they lack, and a GPU or none."""

    def make(engines: Sequence[str] = ALL, *, gpu: bool = False, lacking: str = "") -> None:
        found = {
            name: PluginEntry(name, f"x:{name}", f"evalution-{name}".lower(), "1", ENGINES)
            for name in engines
        }
        monkeypatch.setattr(ENGINES, "names", lambda: found)
        lines = ("GPU 0: NVIDIA H200",) if gpu else ("nvidia-smi failed with 9: no driver",)
        machine = Machine("CPython", "python", "Linux", "x86_64", 2, lines)
        monkeypatch.setattr(engine_choice, "inspect_machine", lambda: machine)
        monkeypatch.setattr(
            engine_choice,
            "find_requirements",
            lambda name: [Needed("torch", ">=2", None, False)] if name == lacking else [],
        )

    return make


@pytest.fixture
def model(tmp_path: Path) -> Any:
    """Makes a model's folder with these empty files, and with a config.json."""

    def make(*files: str, **config: object) -> str:
        for name in files:
            (tmp_path / name).touch()
        if config:
            (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return str(tmp_path)

    return make


def test_model_gets_an_engine_by_its_files(machine: Any, model: Any, tmp_path: Path) -> None:
    machine()
    weights = choose_engine(model("model.safetensors", model_type="gpt2"), {})
    assert weights.engine == "Transformers"
    assert weights.reason.endswith("is a folder of weights (gpt2), and this machine has no GPU")
    quantized = model(model_type="llama", quantization_config={"quant_method": "gptq"})
    assert choose_engine(quantized, {}).engine == "GPTQModel"
    packed = model(model_type="llama", quantization_config={"quant_method": "compressed-tensors"})
    assert choose_engine(packed, {}).engine == "Transformers"
    assert choose_engine(model("openvino_model.xml"), {}).engine == "OpenVINO"
    (tmp_path / "openvino_model.xml").unlink()
    (tmp_path / "config.json").unlink()
    assert choose_engine(model("m.gguf"), {}).engine == "LlamaCpp"
    assert choose_engine(str(tmp_path / "m.gguf"), {}).reason.endswith("m.gguf is a GGUF file")


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("builtin:tiny", "Reference"),
        ("http://127.0.0.1:8000", "OpenAICompatible"),
        ("Qwen/Qwen3-0.6B", "Transformers"),
        ("gpt2", "Transformers"),
        ("unsloth/Qwen3-0.6B-GGUF", "LlamaCpp"),
        ("someone/Llama-3-8B-AWQ", "GPTQModel"),
        ("OpenVINO/Qwen3-0.6B-int4-ov", "OpenVINO"),
    ],
)
def test_model_that_is_elsewhere_gets_an_engine_by_its_name(
    machine: Any, name: str, engine: str
) -> None:
    machine()
    assert choose_engine(name, {}).engine == engine


def test_gpu_and_what_is_installed_decide(machine: Any, model: Any) -> None:
    llama = model("model.safetensors", model_type="llama")
    machine(gpu=True)
    found = choose_engine(llama, {})
    assert (found.engine, found.reason[-28:]) == ("VLLM", ", and this machine has a GPU")
    machine(("Reference", "VLLM"), gpu=False)
    assert choose_engine(llama, {}).engine == "VLLM"
    machine(("Reference",))
    assert choose_engine(llama, {}).engine == "Reference"
    machine(("Transformers", "VLLM"), lacking="evalution-transformers")
    assert choose_engine(llama, {}).engine == "VLLM"
    assert choose_engine("qwen", {"base_url": "http://x"}).engine == "OpenAICompatible"


def test_model_that_no_installed_engine_loads_names_what_to_install(machine: Any) -> None:
    machine(("Reference",))
    message = (
        "a/b is a name on the Hugging Face Hub, and no engine for that is installed; pip install "
        "evalution-transformers or evalution-vllm (installed: Reference; one that you name with "
        "--engine is taken as it is)"
    )
    with pytest.raises(ConfigurationError) as caught:
        choose_engine("a/b", {})
    assert str(caught.value) == message
    machine(("Transformers",), lacking="evalution-transformers")
    with pytest.raises(
        EngineUnavailableError, match=r"torch is not installed; pip install \"torch"
    ):
        choose_engine("a/b", {})


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.bin").touch()
    for name, message in (
        ("./none", "there is no model folder or file ./none"),
        ("none.gguf", "there is no model folder or file none.gguf"),
        (str(tmp_path), "holds no model: neither config.json"),
        (str(tmp_path / "a.bin"), r"a.bin is no model: name a .gguf file"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            classify_model(name)
