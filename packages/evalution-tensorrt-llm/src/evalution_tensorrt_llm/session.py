"""A model in TensorRT-LLM, as a session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from evalution_core import Capability, EvalutionError
from evalution_enginekit import TokenEvent, TokenFeed, TokenScore, TokenSession, TokenSpan
from evalution_enginekit.serving import (
    FixedBatchRequests,
    ServingLoop,
    ServingRuntime,
    SpanGroup,
    span_groups,
)
from evalution_tensorrt_llm.installation import described_version
from evalution_tensorrt_llm.loading import Loaded
from evalution_tensorrt_llm.parameters import Parameters
from evalution_tensorrt_llm.releases import Reading
from evalution_tensorrt_llm.requests import AsyncRequests, BatchRuns, Requests

if TYPE_CHECKING:
    from evalution_tensorrt_llm.engine import TensorRTLLM

_log = logging.getLogger(__name__)

_SCORING_WINDOW = 512
"""Spans planned together; the longer, the seldomer the runtime runs dry between two windows."""
_SCORED_TOKENS = {Reading.PROMPT_LOGPROBS: 16384, Reading.CONTEXT_LOGITS: 4096}
"""Rows of logits, over the whole vocabulary, that are in the making or on their way; those of
`context_logits` lie in main memory, a gigabyte of them for a vocabulary of 64k."""
_LISTED = {Reading.PROMPT_LOGPROBS: 1, Reading.CONTEXT_LOGITS: 1024}
"""Spans of one request: a row of logits has every token that may come last."""
_MOST_PROMPTS = 256
_REQUEST_CALLS = ("generate_async",)


class TensorRTLLMSession(TokenSession):
    """Built by `session_of`.

    Args:
        engine: its options.
        loaded: the model, which the session closes.
        runtime: generates and scores on it.
        loop: the event loop of `runtime`, which the session closes.
        fallback: what runs otherwise than it should, for `describe_execution`.
    """

    def __init__(
        self,
        *,
        engine: TensorRTLLM,
        loaded: Loaded,
        runtime: ServingRuntime,
        capabilities: frozenset[Capability],
        loop: asyncio.AbstractEventLoop | None = None,
        fallback: str | None = None,
    ):
        slots = int(loaded.llm.args.max_batch_size or _MOST_PROMPTS)
        asked = engine.batch_size if isinstance(engine.batch_size, int) else _MOST_PROMPTS
        super().__init__(
            engine="TensorRTLLM",
            capabilities=capabilities,
            tokenizer=loaded.tokenizer,
            max_model_len=loaded.max_model_len,
            batch_size=min(asked, slots),
            scoring_window=_SCORING_WINDOW,
            dtype=_precision(engine, loaded),
            model_vocabulary=loaded.checkpoint.vocabulary,
        )
        self._loaded: Loaded | None = loaded
        self._identified = loaded.identified
        self._listed = _LISTED[loaded.reading]
        self._event_loop = loop
        scored = engine.scored_tokens or _SCORED_TOKENS[loaded.reading]
        self._loop = ServingLoop(runtime, slots=slots, scored_tokens=scored, load=_rows)
        self._execution = _execution(engine, loaded) | {
            "fallback": fallback,
            "max_batch_size": slots,
            "scored_tokens": scored,
        }

    def identity(self) -> dict[str, Any] | None:
        """SHA-256 of each file that answers, or the Hub's revision; None where unknowable."""
        return None if self._identified is None else dict(self._identified)

    def _generate_tokens(self, feed: TokenFeed) -> Iterator[Sequence[TokenEvent]]:
        return self._loop.generate(feed)

    def _score_tokens(
        self, spans: Sequence[TokenSpan]
    ) -> Iterator[Sequence[TokenScore | EvalutionError]]:
        return self._loop.score(span_groups(spans, listed_limit=self._listed))

    def _describe(self) -> dict[str, Any]:
        return self._execution

    def _release(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        del self._loop
        try:
            loaded.close()
        finally:
            if self._event_loop is not None:
                self._event_loop.close()


def session_of(engine: TensorRTLLM, loaded: Loaded) -> TensorRTLLMSession:
    """A session that follows each request, or completes batches where it can't."""
    loop: asyncio.AbstractEventLoop | None = None
    try:
        vocabulary = loaded.checkpoint.vocabulary
        parameters = Parameters(loaded.module, loaded.reading, vocabulary)
        cache: Any = loaded.llm.args.kv_cache_config
        requests = Requests(
            parameters, loaded.reading, reuses_blocks=bool(cache.enable_block_reuse)
        )
        problem = _request_problem(engine, loaded.llm)
        if problem is not None:
            _log.warning("TensorRTLLM falls back to fixed batches: %s", problem)
            return TensorRTLLMSession(
                engine=engine,
                loaded=loaded,
                runtime=FixedBatchRequests(BatchRuns(loaded.llm, requests)),
                capabilities=type(engine).capabilities
                - {Capability.CONTINUOUS_BATCHING, Capability.STREAM},
                fallback=f"fixed batches: {problem}",
            )
        loop = asyncio.new_event_loop()
        return TensorRTLLMSession(
            engine=engine,
            loaded=loaded,
            runtime=AsyncRequests(loaded.llm, requests, loop),
            capabilities=type(engine).capabilities,
            loop=loop,
        )
    except BaseException:
        if loop is not None:
            loop.close()
        loaded.close()
        raise


def _request_problem(engine: TensorRTLLM, llm: Any) -> str | None:
    if not engine.continuous_batching:
        return "continuous_batching is off"
    lacking = [name for name in _REQUEST_CALLS if not hasattr(llm, name)]
    return f"this release's LLM has no {', '.join(lacking)}" if lacking else None


def _rows(group: SpanGroup) -> int:
    """Whatever is scored of it, the runtime computes the logits of a whole prompt."""
    return len(group.fed)


def _precision(engine: TensorRTLLM, loaded: Loaded) -> str:
    """The name of the arithmetic; one that the kit doesn't know where anything is quantized."""
    own = loaded.checkpoint
    dtype = own.dtype if engine.dtype == "auto" else engine.dtype
    if own.quantization is not None:
        return f"{dtype}, {own.quantization}"
    kept = str(loaded.llm.args.kv_cache_config.dtype)
    return dtype if kept in ("auto", dtype) else f"{dtype}, cache in {kept}"


def _execution(engine: TensorRTLLM, loaded: Loaded) -> dict[str, Any]:
    args: Any = loaded.llm.args
    return {
        "version": described_version(),
        "device": "cuda",
        "runtime_backend": args.backend or "pytorch",
        "attention": args.attn_backend,
        "quantization": loaded.checkpoint.quantization,
        "kv_cache_dtype": args.kv_cache_config.dtype,
        "block_reuse": bool(args.kv_cache_config.enable_block_reuse),
        "scores_from": str(loaded.reading),
        "max_seq_len": args.max_seq_len,
        "max_num_tokens": args.max_num_tokens,
        "tensor_parallel_size": args.tensor_parallel_size,
        "pipeline_parallel_size": args.pipeline_parallel_size,
    }
