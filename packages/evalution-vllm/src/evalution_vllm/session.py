"""A model in vLLM, as a session."""

from __future__ import annotations

import logging
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
from evalution_enginekit.serving import FixedBatchRequests, ServingLoop, ServingRuntime, span_groups
from evalution_vllm.cached_prompts import cache_problem
from evalution_vllm.installation import described_version
from evalution_vllm.loading import Loaded, device_name
from evalution_vllm.parameters import LISTED_LIMIT, Parameters
from evalution_vllm.requests import BatchRuns, StepRequests

if TYPE_CHECKING:
    from evalution_vllm.engine import VLLM

_log = logging.getLogger(__name__)

_SCORING_WINDOW = 512
"""Spans planned together; the longer, the seldomer the runtime runs dry between two windows."""
_SCORED_TOKENS = 16384
_STEP_CALLS = ("add_request", "step", "abort_request")


class VLLMSession(TokenSession):
    """Built by `session_of`.

    Args:
        engine: its options.
        loaded: the model, which the session closes.
        runtime: generates and scores on it.
        reads_cache_problem: why prompt log-probabilities don't begin behind the cached prefix.
        fallback: what runs otherwise than it should, for `describe_execution`.
    """

    def __init__(
        self,
        *,
        engine: VLLM,
        loaded: Loaded,
        runtime: ServingRuntime,
        capabilities: frozenset[Capability],
        reads_cache_problem: str | None,
        fallback: str | None,
    ):
        config = loaded.llm.llm_engine.vllm_config
        slots = int(config.scheduler_config.max_num_seqs)
        asked = engine.batch_size if isinstance(engine.batch_size, int) else slots
        super().__init__(
            engine="VLLM",
            capabilities=capabilities,
            tokenizer=loaded.tokenizer,
            max_model_len=loaded.max_model_len,
            batch_size=asked,
            scoring_window=_SCORING_WINDOW,
            dtype=_precision(config),
        )
        self._loaded: Loaded | None = loaded
        self._identified = loaded.identified
        self._loop = ServingLoop(
            runtime, slots=slots, scored_tokens=engine.scored_tokens or _SCORED_TOKENS
        )
        self._execution = _execution(engine, loaded, config) | {
            "fallback": fallback,
            "scoring_cache": reads_cache_problem or "behind the cached prefix",
        }

    def identity(self) -> dict[str, Any] | None:
        """SHA-256 of each file that answers, or the Hub's revision; None where unknowable."""
        return None if self._identified is None else dict(self._identified)

    def _generate_tokens(self, feed: TokenFeed) -> Iterator[Sequence[TokenEvent]]:
        return self._loop.generate(feed)

    def _score_tokens(
        self, spans: Sequence[TokenSpan]
    ) -> Iterator[Sequence[TokenScore | EvalutionError]]:
        return self._loop.score(span_groups(spans, listed_limit=LISTED_LIMIT))

    def _describe(self) -> dict[str, Any]:
        return self._execution

    def _release_caches(self) -> None:
        if self._loaded is not None and not self._loop.in_flight:
            with runtime_errors("emptying the prefix cache"):
                self._loaded.llm.reset_prefix_cache()

    def _release(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            del self._loop
            loaded.close()


def session_of(engine: VLLM, loaded: Loaded) -> VLLMSession:
    """A session that steps vLLM's engine itself, or completes batches where it can't."""
    try:
        llm_engine = loaded.llm.llm_engine
        vocabulary = int(llm_engine.model_config.get_vocab_size())
        problem = _step_problem(engine, llm_engine)
        if problem is not None:
            _log.warning("VLLM falls back to fixed batches: %s", problem)
            at_once = Parameters(loaded.vllm, streams=False)
            runs = BatchRuns(loaded.llm, at_once, vocabulary=vocabulary)
            return VLLMSession(
                engine=engine,
                loaded=loaded,
                runtime=FixedBatchRequests(runs),
                capabilities=type(engine).capabilities
                - {Capability.CONTINUOUS_BATCHING, Capability.STREAM},
                reads_cache_problem="fixed batches score without the cache",
                fallback=f"fixed batches: {problem}",
            )
        parameters = Parameters(loaded.vllm)
        with runtime_errors("a trial of the prefix cache"):
            unread = cache_problem(llm_engine, parameters, loaded, vocabulary)
        return VLLMSession(
            engine=engine,
            loaded=loaded,
            runtime=StepRequests(
                llm_engine, parameters, vocabulary=vocabulary, reads_cache=unread is None
            ),
            capabilities=type(engine).capabilities,
            reads_cache_problem=unread,
            fallback=None,
        )
    except BaseException:
        loaded.close()
        raise


def _step_problem(engine: VLLM, llm_engine: Any) -> str | None:
    if not engine.continuous_batching:
        return "continuous_batching is off"
    lacking = [name for name in _STEP_CALLS if not hasattr(llm_engine, name)]
    return f"this vLLM's engine has no {', '.join(lacking)}" if lacking else None


def _precision(config: Any) -> str:
    """The name of the arithmetic; one that the kit doesn't know where anything is quantized."""
    dtype = str(config.model_config.dtype).removeprefix("torch.")
    if config.model_config.quantization is not None:
        return f"{dtype}, {config.model_config.quantization}"
    kept = str(config.cache_config.cache_dtype)
    return dtype if kept in ("auto", dtype) else f"{dtype}, cache in {kept}"


def _execution(engine: VLLM, loaded: Loaded, config: Any) -> dict[str, Any]:
    attention: Any = config.attention_config.backend
    is_cpu = loaded.vllm.platforms.current_platform.is_cpu()
    return {
        "version": described_version(),
        "device": device_name(loaded.vllm),
        "attention": "CPU_ATTN" if is_cpu else getattr(attention, "name", "auto"),
        "quantization": config.model_config.quantization,
        "kv_cache_dtype": str(config.cache_config.cache_dtype),
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "block_size": config.cache_config.block_size,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "enforce_eager": config.model_config.enforce_eager,
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "batch_invariant": engine.batch_invariant,
        "multiprocessing": engine.multiprocessing,
        "scored_tokens": engine.scored_tokens or _SCORED_TOKENS,
    }
