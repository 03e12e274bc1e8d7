"""Loaders of Transformers: device maps, GGUF files, quantisation, progress bars and errors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from evalution_core import (
    ConfigurationError,
    EngineUnavailableError,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
)
from evalution_core.builtins import builtin_path
from evalution_enginekit.runtime import is_in_range
from evalution_transformers import Transformers
from evalution_transformers.runtime import loading_errors

PAIR = LoglikelihoodRequest("One plus two is", " three.")
SUM = GenerationRequest("8 + 1 =", max_new_tokens=6)
VERSION = version("transformers")
needs_hooks = pytest.mark.skipif(
    not is_in_range(VERSION, ">=5.4"), reason=f"transformers {VERSION} has no hook on its bars"
)
needs_gguf_tokenizers = pytest.mark.skipif(
    not is_in_range(VERSION, ">=5.23"), reason=f"transformers {VERSION} misreads a GGUF's tokenizer"
)


def answers(model: Model, **options: Any) -> tuple[float, str]:
    with Transformers(dtype="float32", **options).build(model) as session:
        (scored,), (completed,) = session.loglikelihood([PAIR]), session.generate([SUM])
        return scored.logprob, completed.text


@pytest.fixture(scope="module")
def right() -> tuple[float, str]:
    return answers(Model("builtin:tiny"), device="cpu")


@pytest.mark.parametrize("place", ["cpu", "auto", {"": "cpu"}], ids=str)
def test_a_device_map_goes_to_upstream(place: Any, right: tuple[float, str]) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    model = Model("builtin:tiny", model_kwargs={"device_map": place})
    logprob, text = answers(model)
    assert logprob == pytest.approx(right[0], abs=1e-4)
    assert text == right[1]
    with Transformers(dtype="float32").build(model) as session:
        assert "device_map" in (session.identity() or {})["model_kwargs"]


@pytest.fixture(params=["gguf", "gguf-q8_0"])
def gguf(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder that holds a GGUF file alone."""
    pytest.importorskip("gguf", reason="gguf is not installed")
    file = builtin_path("builtin:tiny", request.param)
    folder = tmp_path / request.param
    folder.mkdir()
    return Path(shutil.copy(file, folder))


def check_gguf(model: Model, file: Path, right: tuple[float, str]) -> None:
    logprob, text = answers(model, device="cpu")
    # Blocks of eight bits are another model's weights, if near.
    assert logprob == pytest.approx(right[0], abs=1e-4 if "f32" in file.name else 0.5)
    assert text == right[1]


def test_a_gguf_file_answers_as_the_checkpoint_it_was_made_of(
    gguf: Path, right: tuple[float, str]
) -> None:
    tokenizer = str(builtin_path("builtin:tiny", "safetensors"))
    model = Model(str(gguf.parent), model_kwargs={"gguf_file": gguf.name}, tokenizer_path=tokenizer)
    check_gguf(model, gguf, right)


@needs_gguf_tokenizers
def test_the_tokenizer_of_a_gguf_file_is_used_on_request(
    gguf: Path, right: tuple[float, str]
) -> None:
    named = {"gguf_file": gguf.name}
    model = Model(str(gguf.parent), model_kwargs=named, tokenizer_kwargs=named)
    check_gguf(model, gguf, right)
    with Transformers(device="cpu").build(model) as session:
        tokenizer: Any = session.tokenizer
        token_ids = tokenizer.encode("a  b\n\nc Привет 12")
        assert session.identity() is not None
    with Transformers(device="cpu").build(Model("builtin:tiny")) as session:
        other: Any = session.tokenizer
        assert other.encode("a  b\n\nc Привет 12") == token_ids


def test_a_version_that_misreads_the_tokenizer_of_a_gguf_file_is_refused(
    gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers, "__version__", "5.22.2")
    model = Model(str(gguf.parent), tokenizer_kwargs={"gguf_file": gguf.name})
    with pytest.raises(ConfigurationError, match=r"5\.22\.2 splits text otherwise .* tokenizer_pa"):
        Transformers(device="cpu").build(model)


def test_a_path_to_a_gguf_file_is_refused_with_the_right_arguments(gguf: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"is a file; give its folder, .* gguf_file='{gguf.name}'"
    ):
        Transformers(device="cpu").build(Model(str(gguf)))


bitsandbytes_warns = pytest.mark.filterwarnings("ignore:MatMul8bitLt:UserWarning")


@pytest.mark.parametrize(
    ("settings", "layer"),
    [
        ({"load_in_4bit": True, "bnb_4bit_compute_dtype": "float32"}, "Linear4bit"),
        ({"load_in_8bit": True, "llm_int8_threshold": 0.0}, "Linear8bitLt"),
    ],
)
@bitsandbytes_warns
def test_a_model_quantised_by_bitsandbytes_answers_as_upstreams_forward_pass(
    settings: dict[str, Any], layer: str, right: tuple[float, str]
) -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    wanted = transformers.BitsAndBytesConfig(**settings)
    model = Model("builtin:tiny", model_kwargs={"quantization_config": wanted})
    with Transformers(dtype="float32", device="cpu").build(model) as session:
        loaded: Any = session._model
        assert type(loaded.model.layers[0].self_attn.q_proj).__name__ == layer
        assert session.describe_execution()["quantization"] == "bitsandbytes"
        (found,) = session.loglikelihood([PAIR])
        tokenizer: Any = session.tokenizer
        context = [tokenizer.bos_id, *tokenizer.encode(PAIR.context)]
        token_ids = [*context, *(found.token_ids or ())]
        with torch.no_grad():
            logits = loaded(input_ids=torch.tensor([token_ids])).logits[0].float()
        chosen = [
            logits[at - 1].log_softmax(-1)[token_ids[at]].item()
            for at in range(len(context), len(token_ids))
        ]
    assert found.logprob == pytest.approx(sum(chosen), abs=1e-3)
    assert abs(found.logprob - right[0]) > 1e-3


@bitsandbytes_warns
def test_8_bit_layers_with_outlier_detection_are_refused() -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    wanted = transformers.BitsAndBytesConfig(load_in_8bit=True)
    model = Model("builtin:tiny", model_kwargs={"quantization_config": wanted})
    with pytest.raises(ConfigurationError, match=r"8-bit layers .* llm_int8_threshold=0"):
        Transformers(dtype="float32", device="cpu").build(model)


@pytest.fixture
def upstream() -> Iterator[Any]:
    """Upstream's logging, with its verbosity put back after the test."""
    found: Any = transformers.utils.logging
    before = found.get_verbosity()
    yield found
    found.set_verbosity(before)


def test_loading_prints_no_progress_bar(capfd: pytest.CaptureFixture[str]) -> None:
    Transformers(device="cpu").build(Model("builtin:tiny")).close()
    assert "Loading" not in capfd.readouterr().err


@needs_hooks
def test_progress_bars_are_shown_on_request(
    upstream: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    upstream.set_verbosity_info()
    Transformers(device="cpu").build(Model("builtin:tiny")).close()
    assert "Loading weights" in capfd.readouterr().err


@needs_hooks
def test_progress_bar_hook_is_restored_after_loading(upstream: Any) -> None:
    Transformers(device="cpu").build(Model("builtin:tiny")).close()
    assert upstream.set_tqdm_hook(None) is None

    seen: list[str] = []

    def own(bar: Any, args: Any, options: Any) -> Any:
        seen.append(options.get("desc", ""))
        return bar(*args, **{**options, "disable": True})

    upstream.set_tqdm_hook(own)
    try:
        Transformers(device="cpu").build(Model("builtin:tiny")).close()
        assert "Loading weights" in seen
    finally:
        assert upstream.set_tqdm_hook(None) is own


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (ImportError("no gguf"), EngineUnavailableError, "more is needed: no gguf"),
        (torch.OutOfMemoryError("2 GiB"), EngineUnavailableError, "'x' doesn't fit; set .* 2 GiB"),
        (OSError("https://me:word@hub"), ConfigurationError, "no model could be loaded from 'x'"),
        (KeyError("k" * 900), ConfigurationError, "k … k"),
        (ConfigurationError("as it is"), ConfigurationError, "^as it is$"),
    ],
)
def test_errors_of_a_loader_become_errors_of_evalution(
    raised: Exception, kind: type[Exception], message: str
) -> None:
    with (
        pytest.raises(kind, match=message) as caught,
        loading_errors("model", "x", missing="more is needed"),
    ):
        raise raised
    assert "word" not in str(caught.value)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    source = builtin_path("builtin:tiny", "safetensors")
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source)
    tokenizer.add_tokens([f"extra{at}" for at in range(100)])
    tokenizer.save_pretrained(tmp_path)
    model = Model("builtin:tiny", tokenizer_path=str(tmp_path))
    with (
        Transformers(device="cpu").build(model) as session,
        pytest.raises(ValueError, match=r"and outside the model's vocabulary of \d+; set tokenize"),
    ):
        session.generate([GenerationRequest("extra99", max_new_tokens=1)])
