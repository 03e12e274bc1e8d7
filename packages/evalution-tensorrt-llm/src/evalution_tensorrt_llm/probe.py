"""The place where a release of TensorRT-LLM reports the log-probabilities of a prompt's tokens.

Entry i of `prompt_logprobs` is computed from the row of logits after prompt token i, so it ranks
candidates for token i + 1. Releases differ in the token that it has beyond the K likeliest:

- up to about 1.3.0rc5, in 1.2 too: none. A token that isn't among the K likeliest has no value.
- then, to 1.3.0rc10: token i itself, about which that row says nothing (pull request 11235).
- from 1.3.0rc11 on: token i + 1, in the last entry the first generated one (12499, March 2026).

So before 1.3.0rc11 the rows of logits themselves are read. The version decides, and the session's
self check tries it.
"""

from __future__ import annotations

from enum import StrEnum

from packaging.specifiers import SpecifierSet

_HAS_NEXT_TOKEN = SpecifierSet(">=1.3.0rc11")


class ScoreSource(StrEnum):
    """The part of a result that scores are read from."""

    PROMPT_LOGPROBS = "prompt log-probabilities"
    """The whole sequence is fed, the last token too, and a token is generated after it."""
    CONTEXT_LOGITS = "context logits"
    """All but the last token are fed, and a token is generated in the last one's place."""

    @property
    def spare(self) -> int:
        """The number of tokens that a scored sequence takes beyond those that score it."""
        return 2 if self is ScoreSource.PROMPT_LOGPROBS else 1


def choose_score_source(version: str) -> ScoreSource:
    """Return where a release, `1.2.1` or `1.3.0rc11` say, reports the scores of a prompt."""
    if _HAS_NEXT_TOKEN.contains(version, prereleases=True):
        return ScoreSource.PROMPT_LOGPROBS
    return ScoreSource.CONTEXT_LOGITS
