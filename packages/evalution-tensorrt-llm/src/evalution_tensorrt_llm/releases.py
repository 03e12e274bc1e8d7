"""Where a release of TensorRT-LLM tells the log-probabilities of a prompt's tokens.

Entry i of `prompt_logprobs` is computed from the row of logits behind prompt token i, so it ranks
candidates for token i + 1. What changed is which token is in it besides the K likeliest:

- up to about 1.3.0rc5, in 1.2 too: none. A token that isn't among the K likeliest has no value.
- then, to 1.3.0rc10: token i itself, of which that row says nothing (pull request 11235).
- from 1.3.0rc11 on: token i + 1, in the last entry the first generated one (12499, March 2026).

So before 1.3.0rc11 the rows of logits themselves are asked for.
"""

from __future__ import annotations

from enum import StrEnum

from packaging.specifiers import SpecifierSet

_HAS_NEXT_TOKEN = SpecifierSet(">=1.3.0rc11")


class Reading(StrEnum):
    """What scores are read from."""

    PROMPT_LOGPROBS = "prompt log-probabilities"
    """The whole sequence is fed, the last token too, and a token is generated behind it."""
    CONTEXT_LOGITS = "context logits"
    """All but the last token are fed, and a token is generated in the last one's place."""

    @property
    def spare(self) -> int:
        """How many tokens a scored sequence takes at the runtime beyond those that score it."""
        return 2 if self is Reading.PROMPT_LOGPROBS else 1


def reading(version: str) -> Reading:
    """How scores are read from a release, `1.2.1` or `1.3.0rc11` say."""
    if _HAS_NEXT_TOKEN.contains(version, prereleases=True):
        return Reading.PROMPT_LOGPROBS
    return Reading.CONTEXT_LOGITS
