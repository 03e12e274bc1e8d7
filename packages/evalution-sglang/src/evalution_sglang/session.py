"""A model in SGLang, as a session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from evalution_core import Capability, EvalutionError
from evalution_enginekit import (
    TokenEvent,
    TokenFeed,
    TokenScore,
    TokenSession,
    TokenSpan,
    runtime_errors,
)
from evalution_enginekit.serving import ServingLoop, span_groups
from evalution_sglang.installation import described_version
from evalution_sglang.loading import Loaded
from evalution_sglang.parameters import Parameters
from evalution_sglang.requests import EngineRequests

if TYPE_CHECKING:
    from evalution_sglang.engine import SGLang

_SCORING_WINDOW = 512
"""Spans planned together; the longer, the seldomer the runtime runs dry between two windows."""
_SCORED_TOKENS = 16384
_LISTED_LIMIT = 1024
"""Continuations of one token that one request scores; SGLang itself has no limit."""
_MOST_UNASKED = 128
"""Requests at once: with more in its queue, SGLang doesn't compare their prefixes any more."""


class SGLangSession(TokenSession):
    """A model that SGLang runs.

    Args:
        engine: its options.
        loaded: the model, which the session closes.
    """

    def __init__(self, engine: SGLang, loaded: Loaded):
        described = loaded.host.described
        batch_size = engine.batch_size if isinstance(engine.batch_size, int) else None
        asked = batch_size or engine.max_running_requests or 0
        slots = min(_at_once(described), max(asked, _MOST_UNASKED))
        has_seeds = bool(described["enable_deterministic_inference"])
        missing = frozenset[Capability]() if has_seeds else {Capability.SEED}
        vocabulary = loaded.config.vocab_size
        super().__init__(
            engine="SGLang",
            capabilities=type(engine).capabilities - missing,
            tokenizer=loaded.tokenizer,
            max_model_len=loaded.max_model_len,
            batch_size=batch_size or slots,
            scoring_window=_SCORING_WINDOW,
            dtype=_precision(loaded),
            model_vocabulary=vocabulary,
        )
        self._loaded: Loaded | None = loaded
        self._identified = loaded.identified
        self._requests = EngineRequests(
            loaded.host, Parameters(vocabulary=vocabulary, seeds=has_seeds)
        )
        scored_tokens = engine.scored_tokens or _SCORED_TOKENS
        self._loop = ServingLoop(self._requests, slots=slots, scored_tokens=scored_tokens)
        self._execution = _execution(described) | {"scored_tokens": scored_tokens}

    def identity(self) -> dict[str, Any] | None:
        """SHA-256 of each file that answers, or the Hub's revision; None where unknowable."""
        return None if self._identified is None else dict(self._identified)

    def _generate_tokens(self, feed: TokenFeed) -> Iterator[Sequence[TokenEvent]]:
        return self._loop.generate(feed)

    def _score_tokens(
        self, spans: Sequence[TokenSpan]
    ) -> Iterator[Sequence[TokenScore | EvalutionError]]:
        return self._loop.score(span_groups(spans, listed_limit=_LISTED_LIMIT))

    def _describe(self) -> dict[str, Any]:
        return self._execution

    def _release_caches(self) -> None:
        if self._loaded is not None and not self._loop.in_flight:
            with runtime_errors("emptying the prefix cache"):
                self._requests.flush()

    def _release(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.host.end()


def _at_once(described: dict[str, Any]) -> int:
    """How many requests SGLang's scheduler runs at once."""
    return sum(
        state["effective_max_running_requests_per_dp"] for state in described["internal_states"]
    )


def _precision(loaded: Loaded) -> str:
    """The name of the arithmetic; one that the kit doesn't know where anything is quantized."""
    dtype = str(loaded.config.dtype).removeprefix("torch.")
    described = loaded.host.described
    if described["quantization"] is not None:
        return f"{dtype}, {described['quantization']}"
    kept = str(described["kv_cache_dtype"])
    return dtype if kept in ("auto", dtype) else f"{dtype}, cache in {kept}"


def _execution(described: dict[str, Any]) -> dict[str, Any]:
    told = (
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
    return {
        "version": described_version(),
        "attention": described["attention_backend"],
        "prefix_caching": not described["disable_radix_cache"],
        **{name: described[name] for name in told},
    }
