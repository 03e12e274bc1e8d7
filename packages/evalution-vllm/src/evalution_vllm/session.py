"""A model in vLLM, as a session."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from evalution_core import Capability, Model
from evalution_enginekit import runtime_errors
from evalution_enginekit.serving import ServingRuntime, SpanGroup
from evalution_enginekit.serving_session import (
    ServedModel,
    ServingSession,
    find_fallback_reason,
    name_precision,
)
from evalution_vllm.load import Runtime, load
from evalution_vllm.options import VLLMOptions
from evalution_vllm.probe import find_cache_problem
from evalution_vllm.requests import LISTED_LIMIT, Parameters, StepRequests, make_batch_requests
from evalution_vllm.runtime import describe_version, find_device, is_cpu

_STEP_CALLS = ("add_request", "step", "abort_request")


def open_session(
    options: VLLMOptions, model: Model, capabilities: frozenset[Capability]
) -> ServingSession:
    """Load `model`, and return a session that steps vLLM's engine, or completes fixed batches."""
    with ExitStack() as resources:
        return make_session(options, load(options, model, resources), capabilities, resources)


def make_session(
    options: VLLMOptions,
    served: ServedModel[Runtime],
    capabilities: frozenset[Capability],
    resources: ExitStack,
) -> ServingSession:
    """Return a session on a started vLLM; `resources`, which end vLLM, are the session's."""
    engine = served.runtime.llm.llm_engine
    config = engine.vllm_config
    fallback = find_fallback_reason(
        engine, _STEP_CALLS, continuous_batching=options.continuous_batching
    )
    requests, cache_problem = _make_requests(served, is_fixed=fallback is not None)
    return ServingSession(
        engine="VLLM",
        options=options,
        capabilities=capabilities,
        served=served,
        requests=requests,
        slots=int(config.scheduler_config.max_num_seqs),
        listed_tokens=LISTED_LIMIT,
        dtype=name_precision(
            config.model_config.dtype,
            config.model_config.quantization,
            config.cache_config.cache_dtype,
        ),
        execution={
            **_describe_execution(options, served.runtime, config),
            "scoring_cache": cache_problem or "after the cached prefix",
        },
        resources=resources,
        fallback=fallback,
        model_vocabulary=int(config.model_config.get_vocab_size()),
        count_rows=_count_rows,
    )


def _count_rows(group: SpanGroup) -> int:
    """Return the rows that a group takes of `scored_tokens`, of which a long list counts as more.

    The likeliest tokens are listed for the whole prompt, each in about 100 bytes.
    """
    if group.top_logprobs is None:
        return group.inner
    return len(group.spans[0].token_ids) * (1 + group.top_logprobs // 64)


def _make_requests(
    served: ServedModel[Runtime], *, is_fixed: bool
) -> tuple[ServingRuntime, str | None]:
    """Return vLLM's requests, and why they don't score after the cached prefix, if so."""
    vllm, llm = served.runtime.vllm, served.runtime.llm
    engine = llm.llm_engine
    vocabulary = int(engine.model_config.get_vocab_size())
    parameters = Parameters(
        vllm, vocabulary=vocabulary, window=served.max_model_len, streams=not is_fixed
    )
    if is_fixed:
        return make_batch_requests(llm, parameters), "fixed batches score without the cache"
    with runtime_errors("a trial of the prefix cache"):
        problem = find_cache_problem(
            engine,
            parameters,
            engine.vllm_config,
            vocabulary=vocabulary,
            max_model_len=served.max_model_len,
        )
    return StepRequests(engine, parameters, reads_cache=problem is None), problem


def _describe_execution(options: VLLMOptions, runtime: Runtime, config: Any) -> dict[str, Any]:
    attention: Any = config.attention_config.backend
    return {
        "version": describe_version(),
        "device": find_device(runtime.vllm),
        "attention": "CPU_ATTN" if is_cpu(runtime.vllm) else getattr(attention, "name", "auto"),
        "quantization": config.model_config.quantization,
        "kv_cache_dtype": str(config.cache_config.cache_dtype),
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "block_size": config.cache_config.block_size,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "enforce_eager": config.model_config.enforce_eager,
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "batch_invariant": options.batch_invariant,
        "multiprocessing": options.multiprocessing,
    }
