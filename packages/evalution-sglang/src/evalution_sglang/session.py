"""A model in SGLang, as a session."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from evalution_core import Capability, Model
from evalution_enginekit.serving_session import ServingSession, name_precision
from evalution_sglang.load import load
from evalution_sglang.options import SGLangOptions
from evalution_sglang.requests import EngineRequests, Parameters
from evalution_sglang.runtime import describe_version

_LISTED_LIMIT = 1024
"""Continuations of one token that one request scores; SGLang itself has no limit."""
_DEFAULT_LIMIT = 128
"""Requests at once: with more in its queue, SGLang no longer compares their prefixes."""
_DESCRIBED = (
    "device",
    "kv_cache_dtype",
    "sampling_backend",
    "schedule_policy",
    "page_size",
    "max_total_num_tokens",
    "tp_size",
    "dp_size",
    "pp_size",
    "enable_deterministic_inference",
)
"""Parts of SGLang's own description that `describe_execution` has too."""


def open_session(
    options: SGLangOptions, model: Model, capabilities: frozenset[Capability]
) -> ServingSession:
    """Load `model`, and return a session on it."""
    with ExitStack() as resources:
        served = load(options, model, resources)
        thread, config = served.runtime.thread, served.runtime.config
        described = thread.described
        has_seeds = bool(described["enable_deterministic_inference"])
        parameters = Parameters(vocabulary=config.vocab_size, seeds=has_seeds)
        return ServingSession(
            engine="SGLang",
            options=options,
            capabilities=capabilities if has_seeds else capabilities - {Capability.SEED},
            served=served,
            requests=EngineRequests(thread, parameters),
            slots=_count_slots(options, described),
            listed_tokens=_LISTED_LIMIT,
            dtype=name_precision(config.dtype, config.quantization, described["kv_cache_dtype"]),
            execution={
                "version": describe_version(),
                "quantization": config.quantization,
                "attention": described["attention_backend"],
                "prefix_caching": not described["disable_radix_cache"],
                **{name: described[name] for name in _DESCRIBED},
            },
            resources=resources,
            model_vocabulary=config.vocab_size,
        )


def _count_slots(options: SGLangOptions, described: dict[str, Any]) -> int:
    """Return how many requests are at SGLang at once: at most those that its scheduler runs."""
    runs = sum(
        state["effective_max_running_requests_per_dp"] for state in described["internal_states"]
    )
    asked = options.batch_size if isinstance(options.batch_size, int) else None
    return min(runs, max(asked or options.max_running_requests or 0, _DEFAULT_LIMIT))
