"""A model in SGLang, as a session."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from evalution_core import Capability, Model
from evalution_enginekit.serving_session import (
    SCORED_TOKENS,
    ServedModel,
    ServingLimits,
    ServingSession,
    name_precision,
)
from evalution_sglang.load import Runtime, load
from evalution_sglang.options import SGLangOptions
from evalution_sglang.requests import EngineRequests, Parameters
from evalution_sglang.runtime import describe_version

_LISTED_LIMIT = 1024
"""Continuations of one token that one request scores; SGLang itself has no limit."""
_DEFAULT_LIMIT = 128
"""Requests at once: with more in its queue, SGLang no longer compares their prefixes."""
_DESCRIBED = (
    "device",
    "quantization",
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


class SGLangSession(ServingSession):
    """A model that SGLang runs.

    Args:
        options: the engine's options.
        capabilities: the engine's.
        served: the model.
        resources: ends SGLang; the session's from now on.
    """

    def __init__(
        self,
        options: SGLangOptions,
        capabilities: frozenset[Capability],
        served: ServedModel[Runtime],
        *,
        resources: ExitStack,
    ):
        thread, config = served.runtime.thread, served.runtime.config
        described = thread.described
        batch_size = options.batch_size if isinstance(options.batch_size, int) else None
        asked = batch_size or options.max_running_requests or 0
        slots = min(_count_slots(described), max(asked, _DEFAULT_LIMIT))
        has_seeds = bool(described["enable_deterministic_inference"])
        super().__init__(
            engine="SGLang",
            capabilities=capabilities if has_seeds else capabilities - {Capability.SEED},
            served=served,
            requests=EngineRequests(
                thread, Parameters(vocabulary=config.vocab_size, seeds=has_seeds)
            ),
            limits=ServingLimits(
                batch_size=batch_size or slots,
                slots=slots,
                listed_tokens=_LISTED_LIMIT,
                scored_tokens=options.scored_tokens or SCORED_TOKENS,
            ),
            dtype=name_precision(
                config.dtype, described["quantization"], described["kv_cache_dtype"]
            ),
            execution={
                "version": describe_version(),
                "attention": described["attention_backend"],
                "prefix_caching": not described["disable_radix_cache"],
                **{name: described[name] for name in _DESCRIBED},
            },
            resources=resources,
            model_vocabulary=config.vocab_size,
        )


def open_session(
    options: SGLangOptions, model: Model, capabilities: frozenset[Capability]
) -> SGLangSession:
    """Load `model`, and return a session on it."""
    with ExitStack() as resources:
        served = load(options, model, resources)
        return SGLangSession(options, capabilities, served, resources=resources)


def _count_slots(described: dict[str, Any]) -> int:
    """Return how many requests SGLang's scheduler runs at once."""
    return sum(
        state["effective_max_running_requests_per_dp"] for state in described["internal_states"]
    )
