from __future__ import annotations

import importlib.metadata
import pickle
from pathlib import Path

import pytest

import evalution as eval
import evalution.engines as engines
import evalution.engines.base as base
import evalution_core
from evalution.config import Model
from evalution.engines import EngineNotInstalledError
from evalution.hints import (
    ENGINE_ALIASES,
    ENGINE_HINTS,
    GENERATED_VARIANTS,
    suggest_generation,
)
from evalution.suites.discovery import load_suite
from evalution.suites.suite import Suite
from evalution_core import UnknownEngineError, load_engine
from evalution_core.discovery import ENGINES
from evalution_core.kinds import RequestKind
from evalution_core.plugins import normalize


def test_an_installed_engine_is_an_attribute_whatever_its_case() -> None:
    assert engines.Reference is engines.reference
    assert eval.engines.Reference.__module__ == "evalution_reference.engine"


def test_dir_lists_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalution_core.discovery.ENGINES._registered", {})
    groups = ("evalution.engines", "evalution.servers")
    installed = [
        point for group in groups for point in importlib.metadata.entry_points(group=group)
    ]
    assert dir(engines) == sorted({point.name for point in installed})


def test_an_engine_that_is_not_installed_says_what_to_install() -> None:
    with pytest.raises(UnknownEngineError, match="pip install evalution-tensorrt-llm"):
        engines.TensorRTLLM  # noqa: B018
    with pytest.raises(UnknownEngineError, match="did you mean 'Reference'"):
        engines.Referense  # noqa: B018


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("hf", "'Transformers'? pip install evalution-transformers"),
        ("torch", "'Transformers'? pip install evalution-transformers"),
        ("GGUF", "'LlamaCpp'? pip install evalution-llama-cpp"),
        ("llama.cpp", "'LlamaCpp'? pip install evalution-llama-cpp"),
        ("trt-llm", "'TensorRTLLM'? pip install evalution-tensorrt-llm"),
        ("ray", "'RayReplicas'? pip install evalution-ray"),
        ("Ref", "'Reference'? pip install evalution-reference"),
        ("local-completions", "'OpenAICompatible'? pip install evalution-openai"),
        (
            "openai",
            "'OpenAICompatible' with base_url: https://api.openai.com? pip install "
            "evalution-openai",
        ),
        (
            "ollama",
            "'OpenAICompatible' with base_url: http://127.0.0.1:11434? pip install "
            "evalution-openai",
        ),
    ],
)
def test_words_of_other_tools_lead_to_the_engine(
    monkeypatch: pytest.MonkeyPatch, name: str, advice: str
) -> None:
    monkeypatch.setattr(ENGINES, "entries", list)  # nothing is installed
    with pytest.raises(UnknownEngineError) as caught:
        load_engine(name)
    assert str(caught.value) == (
        f"no engine {name!r} is installed; did you mean {advice} (installed: none)"
    )


def test_words_of_other_tools_are_no_engines_and_mean_engines() -> None:
    assert {meant.partition(" ")[0] for meant in ENGINE_ALIASES.values()} <= {*ENGINE_HINTS}
    taken = {normalize(name) for name in ENGINE_HINTS}
    assert not taken & {normalize(word) for word in ENGINE_ALIASES}


def test_a_missing_engine_is_a_missing_attribute() -> None:
    assert not hasattr(engines, "NoSuchEngine")
    assert getattr(engines, "NoSuchEngine", None) is None
    with pytest.raises(AttributeError, match="has no attribute '_private'"):
        engines._private  # noqa: B018  # pyright: ignore[reportPrivateUsage]


def test_the_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(EngineNotInstalledError("no engine")))
    assert isinstance(error, EngineNotInstalledError)
    assert str(error) == "no engine"


def test_the_guides_import_paths_are_the_contracts_own_names() -> None:
    assert {"BaseEngine", "GenerationRequest", "LoglikelihoodOutput"} <= set(base.__all__)
    for name in base.__all__:
        if name != "InferenceSession":
            assert getattr(base, name) is getattr(evalution_core, name)
    assert base.InferenceSession is evalution_core.BaseInferenceSession
    assert Model is evalution_core.Model is eval.Model


def test_hints_name_the_packages_of_this_repository() -> None:
    packages = Path(__file__).parents[2]
    if not (packages / "evalution-core").is_dir():
        pytest.skip("the other packages of the repository are not beside this one")
    assert set(ENGINE_HINTS.values()) <= {path.name for path in packages.iterdir()}


def test_suites_with_a_generated_variant_score() -> None:
    for name, variant in GENERATED_VARIANTS.items():
        kind = load_suite(name)
        assert issubclass(kind, Suite)
        assert kind.request_kind is RequestKind.LOGLIKELIHOOD
        assert suggest_generation(kind.__name__).endswith(f", or {variant} of `type: lm_eval`")
    assert suggest_generation("MultipleChoice").endswith("gsm8k")


def test_importing_an_engine_that_is_not_installed_names_its_package() -> None:
    with pytest.raises(EngineNotInstalledError, match="pip install"):
        from evalution.engines import VLLM  # noqa: F401
    with pytest.raises(EngineNotInstalledError, match="NoSuchEngine"):
        from evalution.engines import NoSuchEngine  # noqa: F401
