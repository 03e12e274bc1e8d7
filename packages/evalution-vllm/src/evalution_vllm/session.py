"""A model in vLLM, as a session."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from evalution_core import Capability, Model
from evalution_enginekit import runtime_errors
from evalution_enginekit.serving import ServingRuntime
from evalution_enginekit.serving_session import (
    SCORED_TOKENS,
    ServedModel,
    ServingLimits,
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


class VLLMSession(ServingSession):
    """A model that vLLM runs.

    Args:
        options: the engine's options.
        capabilities: the engine's.
        served: the model.
        requests: vLLM's step by step, or in fixed batches.
        cache_problem: why prompt log-probabilities don't begin after the cached prefix, if so.
        fallback: why requests run in fixed batches, if so.
        resources: ends vLLM; the session's from now on.
    """

    def __init__(
        self,
        options: VLLMOptions,
        capabilities: frozenset[Capability],
        served: ServedModel[Runtime],
        requests: ServingRuntime,
        *,
        cache_problem: str | None,
        fallback: str | None,
        resources: ExitStack,
    ):
        self.llm = served.runtime.llm
        config = self.llm.llm_engine.vllm_config
        slots = int(config.scheduler_config.max_num_seqs)
        super().__init__(
            engine="VLLM",
            capabilities=capabilities,
            served=served,
            requests=requests,
            limits=ServingLimits(
                batch_size=options.batch_size if isinstance(options.batch_size, int) else slots,
                slots=slots,
                listed_tokens=LISTED_LIMIT,
                scored_tokens=options.scored_tokens or SCORED_TOKENS,
            ),
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
        )


def open_session(
    options: VLLMOptions, model: Model, capabilities: frozenset[Capability]
) -> VLLMSession:
    """Load `model`, and return a session that steps vLLM's engine, or completes fixed batches."""
    with ExitStack() as resources:
        served = load(options, model, resources)
        vllm, llm = served.runtime.vllm, served.runtime.llm
        engine = llm.llm_engine
        vocabulary = int(engine.model_config.get_vocab_size())
        fallback = find_fallback_reason(
            engine, _STEP_CALLS, continuous_batching=options.continuous_batching
        )
        parameters = Parameters(vllm, vocabulary=vocabulary, streams=fallback is None)
        requests: ServingRuntime
        if fallback is not None:
            requests = make_batch_requests(llm, parameters)
            cache_problem = "fixed batches score without the cache"
        else:
            with runtime_errors("a trial of the prefix cache"):
                cache_problem = find_cache_problem(
                    engine,
                    parameters,
                    engine.vllm_config,
                    vocabulary=vocabulary,
                    max_model_len=served.max_model_len,
                )
            requests = StepRequests(engine, parameters, reads_cache=cache_problem is None)
        return VLLMSession(
            options,
            capabilities,
            served,
            requests,
            cache_problem=cache_problem,
            fallback=fallback,
            resources=resources,
        )


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
