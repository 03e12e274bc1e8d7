"""The engine of SGLang, as configuration; nothing is loaded before `build`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    Model,
    speed_only,
    validate_options,
)
from evalution_enginekit.runtime import check_at_least_one

if TYPE_CHECKING:
    from evalution_sglang.session import SGLangSession

SGLANG_CAPABILITIES = frozenset(Capability) - {
    Capability.BEAMS,
    Capability.TOOLS,
    Capability.MULTIMODAL,
    Capability.ATTACH,
}
_AT_LEAST_ONE = (
    "batch_size",
    "scored_tokens",
    "tp_size",
    "dp_size",
    "pp_size",
    "max_running_requests",
    "max_total_tokens",
    "max_prefill_tokens",
    "page_size",
)


@dataclass(slots=True)
class SGLang(BaseEngine):
    """Causal models on SGLang's engine, whose scheduler runs in a process of its own.

    `model.path` is a folder, a Hub id or `builtin:tiny`; `model.model_kwargs` go the way of
    `sglang_kwargs`. Options that SGLang knows have its names and, left at None, its defaults; one
    that the installed version lacks is an error. Seeds need `enable_deterministic_inference`.

    Options:
        tp_size, dp_size, pp_size: devices that share the model, and copies of it.
        max_model_len: tokens the model is fed at most; None: what its configuration says.
        context_length: SGLang's name for `max_model_len`; only one of them may be given.
        device: `cuda`, `cpu`, …; None: what torch finds.
        dtype: precision of weights and arithmetic; `auto` makes float16 of float32 checkpoints.
        quantization, load_format, kv_cache_dtype, attention_backend, sampling_backend: SGLang's
            names of them.
        mem_fraction_static: share of each device's memory, weights included.
        max_running_requests: requests of one step.
        max_total_tokens: tokens that the cache holds.
        max_prefill_tokens, chunked_prefill_size: tokens of one prefill, and of a part of a prompt.
        page_size: tokens of a cache page, the unit of what is shared.
        schedule_policy: which request is next; None: the one with the longest prefix in the cache.
        disable_radix_cache: share no prefixes.
        enable_deterministic_inference: the same numbers whatever else is in the batch, and seeds,
            on the devices where SGLang can do it.
        random_seed: of requests that sample.
        batch_size: requests at the runtime at once; None or `auto`: as many as it can run.
        scored_tokens: tokens whose prompt log-probabilities are in the making at once.
        sglang_kwargs: any other argument of SGLang's `ServerArgs`.
    """

    tp_size: int = 1
    dp_size: int = 1
    pp_size: int = 1
    max_model_len: int | None = None
    context_length: int | None = None
    device: str | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    quantization: str | None = None
    load_format: str | None = None
    kv_cache_dtype: str | None = None
    mem_fraction_static: float | None = speed_only(default=None)
    max_running_requests: int | None = speed_only(default=None)
    max_total_tokens: int | None = speed_only(default=None)
    max_prefill_tokens: int | None = speed_only(default=None)
    chunked_prefill_size: int | None = speed_only(default=None)
    page_size: int | None = speed_only(default=None)
    schedule_policy: str | None = speed_only(default=None)
    disable_radix_cache: bool = speed_only(default=False)
    attention_backend: str | None = None
    sampling_backend: str | None = None
    enable_deterministic_inference: bool = False
    random_seed: int | None = None
    batch_size: int | Literal["auto"] | None = speed_only(default=None)
    scored_tokens: int | None = speed_only(default=None)
    sglang_kwargs: dict[str, Any] | None = None

    capabilities = SGLANG_CAPABILITIES

    def __post_init__(self) -> None:
        validate_options(self)
        check_at_least_one(self, _AT_LEAST_ONE)
        if self.max_model_len is not None and self.context_length is not None:
            raise ConfigurationError(
                f"max_model_len={self.max_model_len} and context_length={self.context_length} of "
                f"engine SGLang mean the same: give one of them"
            )
        share = self.mem_fraction_static
        if share is not None and not 0 < share < 1:
            raise ConfigurationError(f"mem_fraction_static={share} must be above 0 and below 1")

    def describe_runtime(self) -> dict[str, Any]:
        """The version of SGLang, and the device that torch found.

        Raises:
            EngineUnavailableError: it is missing or out of range, or this is no Linux.
        """
        # Only where SGLang is asked for: it takes seconds to import.
        from evalution_sglang.installation import (  # noqa: PLC0415
            described_version,
            device_found,
            runtime,
        )

        runtime()
        return {"version": described_version(), "device": self.device or device_found()}

    def build(self, model: Model) -> SGLangSession:
        """Start SGLang on the checkpoint.

        Its processes are started by `multiprocessing`: a script keeps its work under
        `if __name__ == "__main__":`.

        Raises:
            ConfigurationError: nothing loadable is there, or options contradict the model, the
                device, each other or the installed version.
            EngineUnavailableError: SGLang is missing or out of range, or memory doesn't suffice.
        """
        from evalution_sglang.loading import load  # noqa: PLC0415 - only once a session is asked for
        from evalution_sglang.session import SGLangSession  # noqa: PLC0415 - as above

        loaded = load(self, model)
        try:
            return SGLangSession(self, loaded)
        except BaseException:
            loaded.host.end()
            raise
