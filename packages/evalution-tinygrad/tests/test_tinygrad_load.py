"""Options and models that the tinygrad engine refuses, and the weights that it loads."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

pytest.importorskip("tinygrad", reason="tinygrad is not installed")

from evalution import Run
from evalution.suites import Generation
from evalution_core import ConfigurationError, LoglikelihoodRequest, Model
from evalution_core.builtins import builtin_path
from evalution_enginekit import ByteTokenizer
from evalution_tinygrad import Tinygrad
from evalution_tinygrad.device import open_device
from evalution_tinygrad.load import LoadedModel, read_file, read_weights

gguf: Any = pytest.importorskip("gguf", reason="gguf is not installed")

TINY = Model("builtin:tiny")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "'batch_size' of engine Tinygrad must be at least 1 or 'auto', got 0"),
        ({"pass_tokens": 0}, "'pass_tokens' of engine Tinygrad must be at least 1, got 0"),
        ({"cache_tokens": 0}, "'cache_tokens' of engine Tinygrad must be at least 1, got 0"),
        ({"jitbeam": -1}, "'jitbeam' of engine Tinygrad must be at least 0, got -1"),
        ({"jit": 3}, "'jit' of engine Tinygrad must be at most 2, got 3"),
        ({"max_model_len": 1}, "'max_model_len' of engine Tinygrad must be at least 2, got 1"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Tinygrad(**options)


def test_a_window_beyond_the_models_own_is_refused() -> None:
    engine = Tinygrad(device="cpu", max_model_len=513)
    with pytest.raises(ConfigurationError, match="must be between 2 and the model's own 512"):
        engine.build(TINY)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model_kwargs", "takes no model.model_kwargs: tinygrad has none"),
        ("tokenizer_kwargs", "a file's own tokenizer takes none; set tokenizer_path too"),
    ],
)
def test_a_field_of_the_model_that_would_be_ignored_is_refused(name: str, message: str) -> None:
    model = Model("builtin:tiny", **{name: {"a": 1}})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match=message):
        Tinygrad().build(model)


def test_a_dense_checkpoint_is_refused_with_the_reason(tmp_path: Path) -> None:
    folder = builtin_path("builtin:tiny", "safetensors")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder / name, tmp_path)
    with pytest.raises(ConfigurationError, match=r"dense Hugging Face checkpoint.*GGUF alone"):
        Tinygrad(device="cpu").build(Model(str(tmp_path)))


@pytest.mark.parametrize(
    ("architecture", "metadata", "message"),
    [
        ("gemma3", {}, r"made.gguf is a gemma3 model; tinygrad runs deepseek2, .*, qwen3moe, and"),
        ("qwen35", {}, "qwen35 model: tinygrad runs its recurrent layers for one token of one"),
        ("llama", {"llama.expert_count": 8}, "router's weights tinygrad doesn't normalise"),
        ("llama", {"llama.rope.scaling.type": "yarn"}, r"embeddings \(yarn\), which tinygrad"),
    ],
)
def test_models_that_tinygrad_computes_wrongly_are_refused(
    rewrite_tiny: Callable[..., Path], architecture: str, metadata: dict[str, Any], message: str
) -> None:
    path = rewrite_tiny(architecture=architecture, metadata=metadata)
    with pytest.raises(ConfigurationError, match=message):
        Tinygrad(device="cpu").build(Model(str(path)))


def test_weights_without_a_use_are_refused(rewrite_tiny: Callable[..., Path]) -> None:
    path = rewrite_tiny(tensors={"blk.0.post_ffw_norm.weight": np.ones(128, np.float32)})
    expected = r"weights that tinygrad's llama model doesn't use \(blk.0.post_ffw_norm.weight\)"
    with pytest.raises(ConfigurationError, match=expected):
        Tinygrad(device="cpu").build(Model(str(path)))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (None, r"\('blk.1.attn_v.weight'\): they are incomplete"),
        (np.ones((3, 192), np.float32), r"llama model \(Shape mismatch in layer `blk.1.attn_v"),
    ],
)
def test_weights_that_are_missing_or_misshapen_are_named(
    rewrite_tiny: Callable[..., Path], weight: Any, message: str
) -> None:
    path = rewrite_tiny(tensors={"blk.1.attn_v.weight": weight})
    with pytest.raises(ConfigurationError, match=message):
        Tinygrad(device="cpu").build(Model(str(path)))


def test_biases_of_llama_are_in_the_order_of_their_matrices(
    rewrite_tiny: Callable[..., Path],
) -> None:
    whole = rewrite_tiny("whole.gguf")
    weights = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(whole).tensors}
    parts = [f"blk.{layer}.attn_{part}" for layer in range(2) for part in "qkv"]
    # A bias of the first column must end where that column ends, whatever is done to the rows.
    biases = {f"{part}.bias": weights[f"{part}.weight"][:, 0] for part in parts}
    path = rewrite_tiny(tensors=biases)
    with open_device("cpu", None, None).activate():
        weights = read_weights(read_file(Model(str(path))), "auto", "CPU", realize=True)
        blocks: Any = weights.transformer.blk
        for block in blocks:
            for linear in (block.attn_q, block.attn_k, block.attn_v):
                np.testing.assert_array_equal(linear.bias.numpy(), linear.weight.numpy()[:, 0])


def test_a_sliding_window_bounds_the_models_own(rewrite_tiny: Callable[..., Path]) -> None:
    path = rewrite_tiny(metadata={"llama.attention.sliding_window": 64})
    with Tinygrad(device="cpu").build(Model(str(path))) as session:
        assert session.info.max_model_len == 64
    with pytest.raises(ConfigurationError, match="between 2 and the model's own 64"):
        Tinygrad(device="cpu", max_model_len=65).build(Model(str(path)))


def test_llama_3s_rope_factors_are_used(rewrite_tiny: Callable[..., Path]) -> None:
    # Factors of one change nothing; others do, and tinygrad's own code would leave them out.
    half = np.full(16, 2.0, np.float32)
    pair = LoglikelihoodRequest("The cat sees the red house and the", " dog")
    found: list[float] = []
    for name, factors in (("one.gguf", half / 2), ("two.gguf", half)):
        path = rewrite_tiny(name, tensors={"rope_freqs.weight": factors})
        with Tinygrad(device="cpu").build(Model(str(path))) as session:
            found.append(session.loglikelihood([pair])[0].logprob)
    with Tinygrad(device="cpu").build(TINY) as session:
        plain = session.loglikelihood([pair])[0].logprob
    assert found[0] == pytest.approx(plain, abs=1e-5)
    assert abs(found[1] - plain) > 1e-3


def test_missing_rope_base_is_llama_cpps_default(
    rewrite_tiny: Callable[..., Path],
) -> None:
    path = rewrite_tiny(metadata={"llama.rope.freq_base": None})
    with open_device("cpu", None, None).activate():
        weights = read_weights(read_file(Model(str(path))), "auto", "CPU", realize=True)
    assert weights.transformer.blk[0].config.rope_theta == 10000.0


@pytest.mark.parametrize(
    ("device", "dtype", "held"),
    [
        ("CPU", "auto", "float32"),
        ("CUDA", "auto", "float16"),
        ("CUDA", "float32", "float32"),
        ("CPU", "float16", "float16"),
    ],
)
def test_dtype_of_quantised_weights_depends_on_the_device(
    device: str, dtype: Any, held: str
) -> None:
    file = read_file(Model(str(builtin_path("builtin:tiny", "gguf-q8_0"))))
    with open_device("cpu", None, None).activate():
        weights = read_weights(file, dtype, device, realize=False)
        loaded = LoadedModel(file, ByteTokenizer(), weights, 96)
    assert weights.dtype == held
    assert loaded.dtype == {"float32": "float32", "float16": "float32, weights in float16"}[held]


def test_packed_weights_score_as_unpacked_ones() -> None:
    model = Model(str(builtin_path("builtin:tiny", "gguf-q8_0")))
    pairs = [LoglikelihoodRequest("One plus two is", " three"), LoglikelihoodRequest("", "The cat")]
    found: list[list[float]] = []
    for realize in (True, False):
        with Tinygrad(device="cpu", realize=realize).build(model) as session:
            found.append([output.logprob for output in session.loglikelihood(pairs)])
    assert found[0] == pytest.approx(found[1], abs=1e-4, rel=0)


@pytest.mark.parametrize("batch_size", [None, "auto", 2])
def test_any_batch_size_runs_a_suite_through_the_engines_model(
    batch_size: int | Literal["auto"] | None,
) -> None:
    suite = Generation(
        data="builtin:tiny/sums",
        prompt="Question: {question}\nAnswer:",
        target="answer",
        max_new_tokens=8,
        max_rows=3,
    )
    engine = Tinygrad(device="cpu", batch_size=batch_size, pass_tokens=16)
    with engine.model(path="builtin:tiny") as run:
        assert isinstance(run, Run)
        run.run(suite)
    assert run.result["sums"].metrics["exact_match"].n == 3


def test_every_option_has_a_description() -> None:
    described = Tinygrad.options_schema()["properties"]
    assert all(option["description"] for option in described.values())
