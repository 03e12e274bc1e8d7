"""What an engine refuses, in words; what a session says of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from evalution_core import (
    Capability,
    ConfigurationError,
    EngineUnavailableError,
    GenerationRequest,
    Model,
)
from evalution_transformers import Transformers, TransformersCompat
from evalution_transformers.loading import resolve_device

TINY = Model("builtin:tiny")


@pytest.mark.parametrize(
    ("engine", "model", "message"),
    [
        (Transformers(), Model(), "needs model.path: a folder, a Hub id, or builtin:tiny"),
        (Transformers(), Model("./nowhere"), "'./nowhere' does not exist; give a folder with"),
        (Transformers(device="quick"), TINY, "device='quick' isn't a device of torch; say cpu"),
        (Transformers(max_model_len=1), TINY, "max_model_len=1 must be between 2 and the model's"),
        (Transformers(max_model_len=1 << 20), TINY, "between 2 and the model's own"),
        (Transformers(batch_size=0), TINY, "batch_size=0 must be at least 1"),
        (TransformersCompat(pass_tokens=0), TINY, "pass_tokens=0 must be at least 1"),
        (
            Transformers(),
            Model("builtin:tiny", model_kwargs={"dtype": "float16"}),
            "model_kwargs may not hold dtype: set model.revision",
        ),
        (
            Transformers(manual_eviction=True),
            TINY,
            f"transformers {transformers.__version__} has no manual_eviction for continuous",
        ),
        (
            Transformers(max_cached_graphs=4),
            TINY,
            "max_cached_graphs",
        ),
        (
            Transformers(paged=False, allow_block_sharing=False),
            TINY,
            "allow_block_sharing: for upstream's manager alone, and paged=False keeps it off",
        ),
        (
            Transformers(paged=False, cache_tokens=64),
            TINY,
            "cache_tokens: for upstream's manager alone, and paged=False keeps it off",
        ),
        (Transformers(cache_tokens=0), TINY, "cache_tokens=0 must be at least 1"),
        (Transformers(adapter="./nowhere"), TINY, "'./nowhere'"),
    ],
)
def test_a_wrong_option_is_named(engine: Transformers, model: Model, message: str) -> None:
    with pytest.raises((ConfigurationError, EngineUnavailableError)) as refused:
        engine.build(model)
    assert message in str(refused.value)


def test_a_device_that_is_not_there_is_unavailable() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(EngineUnavailableError, match=r"device='cuda:3' isn't there.*sees cpu"):
        resolve_device("cuda:3")
    assert resolve_device(None) == resolve_device("auto")


def test_weights_that_are_not_safetensors_are_not_read(
    write_checkpoint: Callable[..., Path],
) -> None:
    folder = write_checkpoint()
    weights = folder / "model.safetensors"
    torch.save({}, folder / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(ConfigurationError, match="no causal model could be loaded"):
        Transformers(device="cpu").build(Model(str(folder)))


def test_code_of_a_checkpoint_is_not_run_unasked(write_checkpoint: Callable[..., Path]) -> None:
    folder = write_checkpoint()
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(ConfigurationError, match="trust_remote_code"):
        Transformers(device="cpu").build(Model(str(folder)))


def test_auto_keeps_the_checkpoints_precision(write_checkpoint: Callable[..., Path]) -> None:
    for saved, loaded in ((torch.bfloat16, "bfloat16"), (torch.float16, "float32")):
        folder = write_checkpoint(name=loaded, dtype=saved)
        with TransformersCompat(device="cpu").build(Model(str(folder))) as session:
            assert session.describe_execution()["dtype"] == loaded


def test_a_model_that_cannot_share_says_so_and_does_not_refill(
    write_checkpoint: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    with Transformers(device="cpu").build(Model(str(write_checkpoint("mistral")))) as session:
        told = session.describe_execution()
        assert told["scoring"] == "padded rows"
        assert "reaches 16 tokens back" in told["scoring_fallback"]
        assert told["fallback"].startswith("continuous batching: its attention reaches")
        assert told["batching"] == "fixed batches"
        assert Capability.CONTINUOUS_BATCHING not in session.capabilities
        assert len(session.generate([GenerationRequest("w5 w6", max_new_tokens=3)])) == 1
    notices = [record for record in caplog.records if "falls back" in record.message]
    assert len(notices) == 1


def test_a_transformers_without_the_manager_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The lowest version of the range is such a one.
    old = SimpleNamespace(__version__="4.57.0")
    monkeypatch.setattr("evalution_transformers.paged.transformers", old)
    with Transformers(device="cpu", paged=True).build(TINY) as session:
        told = session.describe_execution()
        assert "has no continuous batching that can be configured" in told["fallback"]
        assert "4.57.0" in told["fallback"]
        assert told["generation"] == "refilled rows"
        session.generate([GenerationRequest("a", max_new_tokens=2)])
    assert sum("falls back" in record.message for record in caplog.records) == 1
    with pytest.raises(ConfigurationError, match="has no use_cuda_graph"):
        Transformers(use_cuda_graph=(True, False)).build(TINY)


@pytest.mark.skipif(
    hasattr(transformers, "ContinuousBatchingConfig"),
    reason=f"transformers {transformers.__version__} has a manager that can be configured",
)
def test_results_tell_that_this_release_has_no_manager(caplog: pytest.LogCaptureFixture) -> None:
    evalution = pytest.importorskip("evalution", reason="evalution is not installed")
    prose = evalution.suites.Perplexity(data="builtin:tiny/prose", text="text", max_rows=2)
    engine = Transformers(device="cpu", paged=True)
    result = evalution.run(engine=engine, model="builtin:tiny", tests=[prose])
    told = result.engine["execution"]
    version = transformers.__version__
    assert told["fallback"] == (
        f"paged attention: transformers {version} has no continuous batching that can be configured"
    )
    assert (told["batching"], told["generation"]) == ("continuous", "refilled rows")
    assert sum("falls back" in record.message for record in caplog.records) == 1


def test_identity_tells_files_and_what_changes_the_numbers(
    write_checkpoint: Callable[..., Path],
) -> None:
    folder = write_checkpoint()
    model = Model(str(folder), model_kwargs={"low_cpu_mem_usage": True})
    with TransformersCompat(device="cpu").build(model) as session:
        told = session.identity() or {}
    assert {"model.safetensors", "config.json", "tokenizer.json", "model_kwargs"} <= set(told)
    with TransformersCompat(device="cpu").build(TINY) as session:
        assert "model_kwargs" not in (session.identity() or {})


def test_auto_is_what_is_taken_unasked() -> None:
    asked = Transformers(device="auto", batch_size="auto", attn_implementation="auto")
    with asked.build(TINY) as session, Transformers().build(TINY) as unasked:
        assert session.describe_execution() == unasked.describe_execution()
        assert session.preferred_batch_size == unasked.preferred_batch_size


def test_the_runtime_is_told_without_a_model() -> None:
    told = Transformers(device="cpu").describe_runtime() or {}
    assert told["device"] == "cpu"
    assert told["version"].startswith("transformers ")
    with pytest.raises(EngineUnavailableError, match="device='cuda:99' isn't there"):
        TransformersCompat(device="cuda:99").describe_runtime()
