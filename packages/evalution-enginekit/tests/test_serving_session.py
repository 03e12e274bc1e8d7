"""The session over a serving runtime, and the loading of its checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalution_core import (
    Capability,
    ConfigurationError,
    EngineRuntimeError,
    EngineUnavailableError,
    Model,
)
from evalution_enginekit.serving_session import (
    LoadingHints,
    StartedModel,
    find_fallback_reason,
    load_serving,
    loading_errors,
    name_precision,
)

HINTS = LoadingHints(
    "Acme", "length or share", device="an accelerator; use a CPU engine", process_errors=(EOFError,)
)


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
            EngineUnavailableError,
            "'./m' doesn't fit into memory; set length or share: CUDA out of memory",
        ),
        (
            RuntimeError("Found no NVIDIA driver on your system."),
            EngineUnavailableError,
            "Acme needs an accelerator; use a CPU engine: Found no NVIDIA driver",
        ),
        (ImportError("libmpi.so.40"), EngineUnavailableError, "loading './m' needs more: libmpi"),
        (
            EOFError("a pipe closed."),
            EngineUnavailableError,
            "Acme's processes didn't start for './m': a pipe closed. Their output is on standard "
            "error; if memory ran out, set length or share",
        ),
        (
            ValueError("unknown architecture " + "x" * 2000),
            ConfigurationError,
            "Acme couldn't load './m': ValueError: unknown architecture",
        ),
        (ConfigurationError("already said"), ConfigurationError, "already said"),
    ],
)
def test_loading_error_names_a_remedy(
    raised: Exception, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as refused, loading_errors("./m", HINTS):
        raise raised
    assert str(refused.value).startswith(message)
    assert len(str(refused.value)) < 1000
    assert refused.value is raised or refused.value.__cause__ is raised


def test_loading_prepares_arguments_before_it_starts_the_runtime() -> None:
    calls: list[str] = []

    def prepare(path: str, folder: Path | None) -> Callable[[], StartedModel[str]]:
        assert path == str(folder)
        calls.append("prepared")
        return start

    def start() -> StartedModel[str]:
        calls.append("started")
        return StartedModel("runtime", 64, revision="abc")

    served = load_serving(Model("builtin:tiny"), engine="Acme", hints=HINTS, prepare=prepare)
    assert calls == ["prepared", "started"]
    assert (served.runtime, served.max_model_len) == ("runtime", 64)
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(served.identity or {})


def test_loading_needs_a_path_and_maps_errors_of_the_start() -> None:
    def start() -> StartedModel[str]:
        raise ZeroDivisionError

    def load(model: Model) -> None:
        load_serving(model, engine="Acme", hints=HINTS, prepare=lambda *_: start)

    with pytest.raises(ConfigurationError, match=r"engine Acme needs model.path: a folder, a Hub"):
        load(Model())
    with pytest.raises(ConfigurationError, match="Acme couldn't load 'builtin:tiny': ZeroDivision"):
        load(Model("builtin:tiny"))


@pytest.mark.parametrize(
    ("dtype", "quantization", "cache", "name"),
    [
        ("torch.float16", None, "auto", "float16"),
        ("float32", None, None, "float32"),
        ("float32", None, "float32", "float32"),
        ("bfloat16", "fp8", "auto", "bfloat16, fp8"),
        ("bfloat16", None, "fp8_e5m2", "bfloat16, cache in fp8_e5m2"),
    ],
)
def test_precision_names_quantization_of_weights_and_cache(
    dtype: str, quantization: str | None, cache: str | None, name: str
) -> None:
    assert name_precision(dtype, quantization, cache) == name


def test_fallback_reason_names_the_option_or_the_missing_calls() -> None:
    runtime = SimpleNamespace(step=print)
    assert find_fallback_reason(runtime, ["step"], continuous_batching=True) is None
    assert find_fallback_reason(runtime, ["step"], continuous_batching=False) == (
        "continuous_batching is off"
    )
    assert find_fallback_reason(runtime, ["step", "add"], continuous_batching=True) == (
        "this release's SimpleNamespace has no add"
    )


def test_session_describes_its_runtime_and_identity(toys: Any) -> None:
    with toys.Served(toys.Stepping(), scored_tokens=77) as session:
        described = session.describe_execution()
        assert (described["version"], described["scored_tokens"]) == ("served 1.0", 77)
        assert (described["fallback"], described["batching"]) == (None, "continuous")
        assert session.identity() == {"weights": "0a"}
        assert session.preferred_batch_size == 8


def test_fixed_batches_are_logged_and_narrow_the_capabilities(
    toys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), toys.Served(toys.Batches()) as session:
        described = session.describe_execution()
        assert described["fallback"] == "fixed batches: no steps"
        assert described["batching"] == "fixed batches"
        assert not {Capability.CONTINUOUS_BATCHING, Capability.STREAM} & session.capabilities
    assert [record.message for record in caplog.records] == [
        "Served falls back to fixed batches: no steps"
    ]


def test_gc_flushes_the_prefix_cache_of_an_idle_runtime(
    toys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = toys.Stepping()
    with toys.Served(runtime) as session:
        session.gc()
        assert runtime.flushes == 1
        with monkeypatch.context() as busy:
            busy.setattr(session, "_loop", SimpleNamespace(in_flight={"evalution-0": 0}))
            session.gc()
        assert runtime.flushes == 1
        monkeypatch.setattr(runtime, "flush", lambda: 1 // 0)
        with pytest.raises(EngineRuntimeError, match="emptying the prefix cache failed"):
            session.gc()


def test_resources_are_freed_once_with_the_session_or_with_a_failed_build(
    toys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[str] = []
    session = toys.Served(toys.Stepping(), release=lambda: freed.append("closed"))
    assert freed == []
    session.close()
    session.close()
    assert freed == ["closed"]

    monkeypatch.setattr("evalution_enginekit.serving_session.ServingLoop", lambda *_, **__: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        toys.Served(toys.Stepping(), release=lambda: freed.append("not built"))
    assert freed == ["closed", "not built"]
