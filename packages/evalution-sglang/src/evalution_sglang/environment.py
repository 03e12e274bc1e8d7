"""SGLang's switches that are environment variables, set while it starts and not a moment longer."""

from __future__ import annotations

from pathlib import Path

QUIET = {
    # Upstream replaces the handlers of the root logger otherwise, in this process too.
    "SGLANG_LOGGING_CONFIG_PATH": str(Path(__file__).with_name("logging.json")),
    # Its processes warn of kernels for other devices, each anew.
    "PYTHONWARNINGS": "ignore",
}
CPU = {
    # Without it, kernels of another runtime are asked for, and the scheduler dies.
    "SGLANG_USE_CPU_ENGINE": "1",
}
SCORES = {
    # Log-probabilities of the model's own distribution, whatever the temperature.
    "SGLANG_RETURN_ORIGINAL_LOGPROB": "1",
    # The window is longer than the model's own by tokens that are never fed.
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
}
