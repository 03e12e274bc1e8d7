"""Options that engines refuse, and the description of sessions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
from evalution_core.options import options_schema
from evalution_transformers import Transformers, TransformersCompat
from evalution_transformers.paged import asks_for_paged
from evalution_transformers.runtime import resolve_device

TINY = Model("builtin:tiny")


@pytest.mark.parametrize(
    ("engine", "model", "message"),
    [
        (Transformers(), Model(), "needs model.path: a folder, a Hub id, or builtin:tiny"),
        (Transformers(), Model("./nowhere"), "'./nowhere' does not exist; give a folder with"),
        (Transformers(device="quick"), TINY, "device='quick' isn't a device of torch; say cpu"),
        (Transformers(max_model_len=1 << 20), TINY, "between 2 and the model's own"),
        (
            Transformers(),
            Model("builtin:tiny", model_kwargs={"dtype": "float16"}),
            "model_kwargs may not hold dtype: set model.revision",
        ),
        (
            Transformers(manual_eviction=True),
            TINY,
            f"{transformers.__version__} has no setting of continuous batching 'manual_eviction'",
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
        (
            Transformers(paged=False, attn_implementation="paged|sdpa"),
            TINY,
            "attn_implementation='paged|sdpa' asks for upstream's manager, and paged=False keeps",
        ),
        (
            TransformersCompat(attn_implementation="paged|sdpa"),
            TINY,
            "attn_implementation='paged|sdpa' is for the engine Transformers alone",
        ),
        (
            Transformers(device="cpu", use_async_batching=True),
            TINY,
            "use_async_batching=True needs CUDA, and the device is cpu; leave it out",
        ),
        (Transformers(adapter="./nowhere"), TINY, "'./nowhere'"),
    ],
)
def test_options_that_contradict_the_model_or_the_runtime_are_refused(
    engine: Transformers | TransformersCompat, model: Model, message: str
) -> None:
    with pytest.raises((ConfigurationError, EngineUnavailableError)) as refused:
        engine.build(model)
    assert message in str(refused.value)


def test_a_missing_device_is_unavailable() -> None:
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


def test_code_of_a_checkpoint_runs_only_with_trust_remote_code(
    write_checkpoint: Callable[..., Path],
) -> None:
    folder = write_checkpoint()
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(ConfigurationError, match="trust_remote_code"):
        Transformers(device="cpu").build(Model(str(folder)))


def test_auto_keeps_the_checkpoints_precision(write_checkpoint: Callable[..., Path]) -> None:
    for saved, loaded in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        folder = write_checkpoint(name=loaded, dtype=saved)
        with TransformersCompat(device="cpu").build(Model(str(folder))) as session:
            assert session.describe_execution()["dtype"] == loaded


def test_a_model_that_cannot_share_prefixes_runs_in_fixed_batches(
    write_checkpoint: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    with Transformers(device="cpu").build(Model(str(write_checkpoint("mistral")))) as session:
        execution = session.describe_execution()
        assert execution["scoring"] == "padded rows"
        assert "reaches 16 tokens back" in execution["scoring_fallback"]
        assert execution["fallback"].startswith("continuous batching: its attention reaches")
        assert execution["batching"] == "fixed batches"
        assert Capability.CONTINUOUS_BATCHING not in session.capabilities
        assert len(session.generate([GenerationRequest("w5 w6", max_new_tokens=3)])) == 1
    notices = [record for record in caplog.records if "falls back" in record.message]
    assert len(notices) == 1


def test_a_transformers_without_the_manager_is_a_recorded_fallback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The lowest version of the range is such a one.
    old = SimpleNamespace(__version__="4.57.0")
    monkeypatch.setattr("evalution_transformers.paged.transformers", old)
    with Transformers(device="cpu", paged=True).build(TINY) as session:
        execution = session.describe_execution()
        assert "has no continuous batching that can be configured" in execution["fallback"]
        assert "4.57.0" in execution["fallback"]
        assert execution["generation"] == "forward passes"
        session.generate([GenerationRequest("a", max_new_tokens=2)])
    assert sum("falls back" in record.message for record in caplog.records) == 1
    with pytest.raises(ConfigurationError, match="setting of continuous batching 'use_cuda_graph'"):
        Transformers(use_cuda_graph=(True, False)).build(TINY)


@pytest.mark.skipif(
    hasattr(transformers, "ContinuousBatchingConfig"),
    reason=f"transformers {transformers.__version__} has a manager that can be configured",
)
def test_results_report_that_this_release_has_no_manager(caplog: pytest.LogCaptureFixture) -> None:
    evalution = pytest.importorskip("evalution", reason="evalution is not installed")
    prose = evalution.suites.Perplexity(data="builtin:tiny/prose", text="text", max_rows=2)
    engine = Transformers(device="cpu", paged=True)
    result = evalution.run(engine=engine, model="builtin:tiny", tests=[prose])
    execution = result.engine["execution"]
    version = transformers.__version__
    assert execution["fallback"] == (
        f"paged attention: transformers {version} has no continuous batching that can be configured"
    )
    assert (execution["batching"], execution["generation"]) == ("continuous", "forward passes")
    assert sum("falls back" in record.message for record in caplog.records) == 1


def test_identity_holds_files_and_loader_arguments(
    write_checkpoint: Callable[..., Path],
) -> None:
    folder = write_checkpoint()
    model = Model(str(folder), model_kwargs={"low_cpu_mem_usage": True})
    with TransformersCompat(device="cpu").build(model) as session:
        execution = session.identity() or {}
    assert {"model.safetensors", "config.json", "tokenizer.json", "model_kwargs"} <= set(execution)
    with TransformersCompat(device="cpu").build(TINY) as session:
        assert "model_kwargs" not in (session.identity() or {})


def test_auto_is_the_default_of_each_option() -> None:
    asked = Transformers(device="auto", batch_size="auto", attn_implementation="auto")
    with asked.build(TINY) as session, Transformers().build(TINY) as unasked:
        assert session.describe_execution() == unasked.describe_execution()
        assert session.info == unasked.info


def test_the_runtime_is_described_without_a_model() -> None:
    execution = Transformers(device="cpu").describe_runtime() or {}
    assert execution["device"] == "cpu"
    assert execution["version"].startswith("transformers ")
    with pytest.raises(EngineUnavailableError, match="device='cuda:99' isn't there"):
        TransformersCompat(device="cuda:99").describe_runtime()


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (Transformers, {"batch_size": 0}),
        (Transformers, {"cache_tokens": 0}),
        (Transformers, {"max_batch_tokens": 0}),
        (Transformers, {"max_model_len": 1}),
        (TransformersCompat, {"pass_tokens": 0}),
        (TransformersCompat, {"batch_size": "all"}),
    ],
)
def test_an_option_outside_its_bounds_is_refused_at_construction(
    kind: type[Transformers | TransformersCompat], option: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match=f"option '{next(iter(option))}' of engine"):
        kind(**option)


@pytest.mark.parametrize("kind", [Transformers, TransformersCompat])
def test_every_option_has_a_description(kind: type[Transformers | TransformersCompat]) -> None:
    properties = options_schema(kind)["properties"]
    assert all(shown.get("description") for shown in properties.values())
    assert properties["pass_tokens"]["anyOf"][0]["minimum"] == 1


def test_paged_attention_is_the_manager_or_a_recorded_fallback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Transformers(device="cpu", attn_implementation="paged|sdpa", batch_size=2)
    with engine.build(TINY) as session:
        execution = session.describe_execution()
        assert execution["attention"] == "sdpa"
        has_manager = execution["generation"] == "paged attention"
        assert has_manager is (execution["fallback"] is None)
    old = SimpleNamespace(__version__="4.57.0")
    monkeypatch.setattr("evalution_transformers.paged.transformers", old)
    with engine.build(TINY) as session:
        assert session.describe_execution()["fallback"].startswith("paged attention: ")


@pytest.mark.parametrize("batch_size", ["auto", None, 3])
@pytest.mark.parametrize("kind", [Transformers, TransformersCompat])
def test_a_suite_runs_with_any_batch_size(
    kind: type[Transformers | TransformersCompat], batch_size: Any
) -> None:
    evalution = pytest.importorskip("evalution", reason="evalution is not installed")
    prose = evalution.suites.Perplexity(data="builtin:tiny/prose", text="text", max_rows=2)
    engine = kind(device="cpu", batch_size=batch_size)
    started: Any = engine.model(path="builtin:tiny")
    with started.run(prose) as run:
        assert run.result.suites[0].metrics


def test_size_of_the_managers_cache_asks_for_the_manager() -> None:
    assert asks_for_paged(Transformers(cache_tokens=4096))
    assert not asks_for_paged(Transformers())
