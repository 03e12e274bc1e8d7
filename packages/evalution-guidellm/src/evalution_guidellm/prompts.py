"""A session's request from the body that GuideLLM would send to a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evalution_core import Capability, GenerationRequest, UnsupportedRequestError

BODY_FIELDS = ("temperature", "top_p", "top_k", "seed", "stop", "ignore_eos", "max_tokens")
"""What `extras.body` may add to every request."""
_DEFAULT_TOKENS = 256


def session_request(
    body: Mapping[str, Any], capabilities: frozenset[Capability]
) -> GenerationRequest:
    """The request of a body for completions (`prompt`) or chat (`messages`).

    It is what Evalution's server makes of the same body, so that a run in process and one through
    the server do the same work: greedy unless `temperature` is above 0, and a prompt that is too
    long is refused rather than cut, where the engine can tell.

    Raises:
        UnsupportedRequestError: the body has tools.
    """
    if body.get("tools"):
        raise UnsupportedRequestError("the data has tools, which kind=evalution doesn't pass on")
    stop: Any = body.get("stop") or ()
    sampled = bool(body.get("temperature"))
    return GenerationRequest(
        prompt=body.get("prompt"),
        messages=body.get("messages"),
        stop=[stop] if isinstance(stop, str) else stop,
        max_new_tokens=body.get("max_completion_tokens")
        or body.get("max_tokens")
        or _DEFAULT_TOKENS,
        do_sample=sampled,
        temperature=float(body.get("temperature") or 0),
        top_p=float(body.get("top_p") or 1),
        top_k=max(0, body.get("top_k") or 0),
        seed=body.get("seed") if sampled else None,
        ignore_eos=bool(body.get("ignore_eos")),
        truncation="error" if Capability.TRUNCATION in capabilities else "left",
    )
