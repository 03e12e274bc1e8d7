"""Capabilities of engines, declared before any weights are loaded."""

from __future__ import annotations

from enum import StrEnum


class Capability(StrEnum):
    """One thing a request may ask for. A request for one that isn't declared is refused."""

    GENERATE = "generate"
    """Complete a prompt."""
    CHAT = "chat"
    """Take `messages` in place of text."""
    LOGLIKELIHOOD = "loglikelihood"
    """Score a continuation given a context."""
    ROLLING = "rolling"
    """Score a whole text, longer than the model's window if need be."""
    TOKEN_IDS = "token_ids"
    """Take token ids in place of text."""
    SAMPLING = "sampling"
    """`do_sample` with `temperature`, `top_p`, `top_k`."""
    SEED = "seed"
    """The same `seed` gives the same sample, whatever else is in the batch."""
    BEAMS = "beams"
    """`num_beams` above one."""
    LOGPROBS = "logprobs"
    """Log-probabilities of generated tokens."""
    PROMPT_TOP_LOGPROBS = "prompt_top_logprobs"
    """`top_logprobs`: the most likely tokens at every scored position."""
    DISTRIBUTIONS = "distributions"
    """Log-probabilities of the whole vocabulary at given positions."""
    IGNORE_EOS = "ignore_eos"
    """Generate on past the end-of-sequence token."""
    TRUNCATION = "truncation"
    """Count what is cut from the left, and refuse it instead with `truncation="error"`."""
    TOOLS = "tools"
    """Tool definitions rendered into a chat prompt."""
    MULTIMODAL = "multimodal"
    """Message parts that aren't text."""
    STREAM = "stream"
    """Text of a request while it is being generated."""
    CONTINUOUS_BATCHING = "continuous_batching"
    """A free slot takes the next request at once, not when its batch is done."""
    ATTACH = "attach"
    """A session on a model that the caller has in memory."""


GUIDE_CAPABILITIES = frozenset(
    {Capability.GENERATE, Capability.CHAT, Capability.LOGLIKELIHOOD, Capability.ROLLING}
)
"""Capabilities of every engine of the Engine Guide: the default of one that declares nothing."""
