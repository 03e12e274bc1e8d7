"""A model in TensorRT-LLM, as a session."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

from evalution_core import Capability, Model
from evalution_enginekit.serving import ServingRuntime, SpanGroup
from evalution_enginekit.serving_session import (
    SCORED_TOKENS,
    ServingSession,
    find_fallback_reason,
    name_precision,
)
from evalution_tensorrt_llm.load import Runtime, load
from evalution_tensorrt_llm.options import TensorRTLLMOptions
from evalution_tensorrt_llm.requests import (
    AsyncRequests,
    RequestFactory,
    make_batch_requests,
)
from evalution_tensorrt_llm.runtime import ScoreSource, describe_version

_SCORED_TOKENS = {ScoreSource.PROMPT_LOGPROBS: SCORED_TOKENS, ScoreSource.CONTEXT_LOGITS: 4096}
"""Rows of logits, over the whole vocabulary, that are computed at once or on their way; those of
`context_logits` lie in main memory, a gigabyte of them for a vocabulary of 64k."""
_LISTED = {ScoreSource.PROMPT_LOGPROBS: 1, ScoreSource.CONTEXT_LOGITS: 1024}
"""Spans of one request: a row of logits has every token that may come last."""
_DEFAULT_LIMIT = 256
_REQUEST_CALLS = ("generate_async",)


def open_session(
    options: TensorRTLLMOptions, model: Model, capabilities: frozenset[Capability]
) -> ServingSession:
    """Load `model`, and return a session that follows each request, or completes fixed batches."""
    with ExitStack() as resources:
        loop = asyncio.new_event_loop()
        # Registered first, so closed last: the runtime reports to it until it has ended.
        resources.callback(loop.close)
        served = load(options, model, resources)
        runtime = served.runtime
        llm, checkpoint = runtime.llm, runtime.checkpoint
        args: Any = llm.args
        factory = RequestFactory(
            runtime.module,
            runtime.source,
            checkpoint.vocabulary,
            reuses_blocks=bool(args.kv_cache_config.enable_block_reuse),
        )
        fallback = find_fallback_reason(
            llm, _REQUEST_CALLS, continuous_batching=options.continuous_batching
        )
        requests: ServingRuntime = AsyncRequests(llm, factory, loop)
        if fallback is not None:
            requests = make_batch_requests(llm, factory)
        return ServingSession(
            engine="TensorRTLLM",
            options=options,
            capabilities=capabilities,
            served=served,
            requests=requests,
            slots=int(args.max_batch_size or _DEFAULT_LIMIT),
            listed_tokens=_LISTED[runtime.source],
            dtype=name_precision(
                checkpoint.dtype if options.dtype == "auto" else options.dtype,
                checkpoint.quantization,
                args.kv_cache_config.dtype,
            ),
            execution=_describe_execution(runtime),
            resources=resources,
            fallback=fallback,
            model_vocabulary=checkpoint.vocabulary,
            scored_tokens=_SCORED_TOKENS[runtime.source],
            count_rows=_count_rows,
        )


def _describe_execution(runtime: Runtime) -> dict[str, Any]:
    args: Any = runtime.llm.args
    return {
        "version": describe_version(),
        "device": "cuda",
        "runtime_backend": args.backend or "pytorch",
        "attention": args.attn_backend,
        "quantization": runtime.checkpoint.quantization,
        "kv_cache_dtype": args.kv_cache_config.dtype,
        "block_reuse": bool(args.kv_cache_config.enable_block_reuse),
        "scores_from": str(runtime.source),
        "max_batch_size": int(args.max_batch_size or _DEFAULT_LIMIT),
        "max_seq_len": args.max_seq_len,
        "max_num_tokens": args.max_num_tokens,
        "tensor_parallel_size": args.tensor_parallel_size,
        "pipeline_parallel_size": args.pipeline_parallel_size,
    }


def _count_rows(group: SpanGroup) -> int:
    """Return the rows of logits that the runtime computes: those of the whole prompt."""
    return len(group.fed)
