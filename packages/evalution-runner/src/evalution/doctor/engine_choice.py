"""The engine for a model where nobody names one: by what the model is, and what works here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evalution.doctor.engines import find_requirements
from evalution.doctor.machine import inspect_machine
from evalution.hints import ENGINE_HINTS
from evalution.user_input import parse_path, path_errors
from evalution_core import ConfigurationError, EngineUnavailableError
from evalution_core.builtins import PREFIX
from evalution_core.discovery import ENGINES, EngineEntry
from evalution_core.plugins import normalize

SERVER = "OpenAICompatible"
_URL = ("http://", "https://")
_ADDRESS = re.compile(r"(localhost|[\w-]+(\.[\w-]+)+):\d+(/.*)?")
"""Of a server, without http://."""
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")
_REFERENCE_FAMILIES = ("llama", "qwen2", "qwen3")


class ModelKind(NamedTuple):
    """The form of a model: words for it, and the engines that load it, the best one first.

    `with_gpu` is their order on a machine with a GPU, where that is another one.
    """

    words: str
    engines: Sequence[str]
    with_gpu: Sequence[str] = ()


class EngineChoice(NamedTuple):
    """An engine, and the reason for it in one line."""

    engine: str
    reason: str


def is_server(model: str) -> bool:
    """Report whether a model is given as the address of a server."""
    return model.startswith(_URL)


def choose_engine(model: str, options: Mapping[str, Any]) -> EngineChoice:
    """Return the engine for `model`, which may have `options` already.

    Raises:
        ConfigurationError: there is no such model, or none of the engines that load it is
            installed.
        EngineUnavailableError: those that are installed lack a package.
    """
    if is_server(model):
        return EngineChoice(SERVER, f"{model} is the address of a server")
    if "base_url" in options:
        return EngineChoice(SERVER, f"{model} is on the server at engine.base_url")
    kind = classify_model(model)
    found = _find_working(model, kind)
    why = f"{model} is {kind.words}"
    if len(found) > 1 and kind.with_gpu:
        has_gpu = inspect_machine().has_gpu
        order = kind.with_gpu if has_gpu else kind.engines
        found = sorted(found, key=order.index)
        why += ", and this machine has a GPU" if has_gpu else ", and this machine has no GPU"
    return EngineChoice(found[0], why)


def _find_working(model: str, kind: ModelKind) -> list[str]:
    """Return the installed engines of that kind whose requirements are met, the best one first."""
    installed = {normalize(name): entry for name, entry in ENGINES.names().items()}
    there = [name for name in kind.engines if normalize(name) in installed]
    lacking = {name: _find_lack(installed[normalize(name)]) for name in there}
    if working := [name for name in there if not lacking[name]]:
        return working
    if there:
        name = there[0]
        raise EngineUnavailableError(
            f"{model} is {kind.words}, which {name} loads, and {name} can't work: {lacking[name]}"
        )
    first = list(dict.fromkeys((*kind.engines, *kind.with_gpu)))
    packages = " or ".join(dict.fromkeys(ENGINE_HINTS[name] for name in first[:2]))
    listed = ", ".join(ENGINES.names()) or "none"
    raise ConfigurationError(
        f"{model} is {kind.words}, and no engine for that is installed; pip install {packages} "
        f"(installed: {listed}; one that you name with --engine is taken as it is)"
    )


def _find_lack(entry: EngineEntry) -> str:
    needs = find_requirements(entry.distribution) if entry.distribution else []
    return "; ".join(f"{need.complaint}; {need.command}" for need in needs if not need.is_met)


_WEIGHTS = ("Transformers", "VLLM", "SGLang", "TensorRTLLM")
_WEIGHTS_WITH_GPU = ("VLLM", "SGLang", "Transformers", "TensorRTLLM")
_BUILTIN = ModelKind("the model of a package", ("Reference", *_WEIGHTS))
_GGUF = ModelKind("a GGUF file", ("LlamaCpp", "Tinygrad"))
_OPENVINO = ModelKind("an OpenVINO model", ("OpenVINO",))
_TENSORRT = ModelKind("a TensorRT-LLM engine", ("TensorRTLLM",))
_TINKER = ModelKind("a Tinker address", ("Tinker",))
_HUB = ModelKind("a name on the Hugging Face Hub", _WEIGHTS, _WEIGHTS_WITH_GPU)


_OF_GPTQMODEL = ("gptq", "awq", "qqq")
"""Methods of quantisation whose checkpoints GPTQModel loads."""


def _quantized(method: str, words: str) -> ModelKind:
    if method not in _OF_GPTQMODEL:
        return ModelKind(words, _WEIGHTS[:3], _WEIGHTS_WITH_GPU[:3])
    best = ("GPTQModel", "Transformers", "VLLM", "SGLang")
    return ModelKind(words, best, ("VLLM", "SGLang", "GPTQModel", "Transformers"))


def classify_model(model: str) -> ModelKind:
    """Return the form of a model, by its files, or by its name if it isn't on this machine.

    Raises:
        ConfigurationError: there is no such file or folder, or it holds no model.
    """
    if model.startswith(PREFIX):
        return _BUILTIN
    if model.startswith("tinker://"):
        return _TINKER
    path = parse_path(model)
    with path_errors(path):
        if path.is_dir():
            return _classify_folder(path)
        if path.is_file():
            return _classify_file(path)
    if _ADDRESS.fullmatch(model):
        raise ConfigurationError(
            f"there is no model folder or file {model}; a server's address begins with http://: "
            f"--model http://{model}"
        )
    is_path = model.startswith(".") or model.lower().endswith(".gguf")
    if is_path or not _HUB_NAME.fullmatch(model):
        raise ConfigurationError(f"there is no model folder or file {model}")
    return _classify_name(model)


def _classify_file(path: Path) -> ModelKind:
    if path.suffix.lower() == ".gguf":
        return _GGUF
    raise ConfigurationError(
        f"{path} is no model: name a .gguf file, or the folder with config.json and the weights"
    )


def _classify_folder(path: Path) -> ModelKind:
    if (path / "openvino_model.xml").exists():
        return _OPENVINO
    if next(path.glob("rank*.engine"), None):
        return _TENSORRT
    config = path / "config.json"
    if config.exists():
        return _classify_config(_read_config(config))
    if next(path.glob("*.gguf"), None):
        return _GGUF
    raise ConfigurationError(
        f"{path} holds no model: neither config.json with weights, a .gguf file nor "
        "openvino_model.xml"
    )


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} can't be read: {error}") from None
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _classify_config(config: Mapping[str, Any]) -> ModelKind:
    family = config.get("model_type")
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict):
        method = str(quantization.get("quant_method", "quantized"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        return _quantized(method, f"a {method} checkpoint ({family})")
    small = ("Reference",) if family in _REFERENCE_FAMILIES else ()
    words = f"a folder of weights ({family})"
    return ModelKind(words, (*_WEIGHTS, *small), (*_WEIGHTS_WITH_GPU, *small))


def _classify_name(model: str) -> ModelKind:
    words = re.split(r"[^a-z0-9]+", model.lower())
    if "gguf" in words:
        return ModelKind("a name of GGUF files on the Hugging Face Hub", _GGUF.engines)
    if words[0] == "openvino":
        return _OPENVINO
    for method in ("gptq", "awq"):
        if method in words:
            return _quantized(method, f"a name of a {method} checkpoint on the Hugging Face Hub")
    return _HUB
