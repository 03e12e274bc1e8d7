"""vLLM's switches that are environment variables, set while it starts and not a moment longer."""

from __future__ import annotations

QUIET = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Upstream logs to standard output, which belongs to whoever prints results.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}
PRIVATE = {"VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1"}
