"""Spans as the requests of a serving runtime: continuations of one token share one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalution_enginekit.tokens import TokenSpan


@dataclass(frozen=True, slots=True)
class SpanGroup:
    """Spans that one request scores: all feed `fed` and score the same tokens but for the last.

    The request feeds `fed` and generates one token. The row behind `fed` holds the log-probability
    of every span's last token, `listed`; the rows from `start` on hold what is scored before.
    """

    spans: tuple[TokenSpan, ...]

    @property
    def fed(self) -> Sequence[int]:
        return self.spans[0].fed

    @property
    def start(self) -> int:
        """The first scored token's position in `fed`; `len(fed)` where only the last is scored."""
        return self.spans[0].start

    @property
    def listed(self) -> list[int]:
        """The last token of each span, each once, in their order."""
        return list(dict.fromkeys(span.token_ids[-1] for span in self.spans))

    @property
    def inner(self) -> int:
        """How many tokens inside of `fed` are scored, which takes prompt log-probabilities."""
        return len(self.fed) - self.start


def span_groups(spans: Sequence[TokenSpan], *, listed_limit: int) -> list[SpanGroup]:
    """Neighbours that differ in their last token alone in one group, in the order of `spans`.

    `listed_limit` is how many tokens a request can list; 1 for a runtime that lists none.
    """
    groups: list[list[TokenSpan]] = []
    for span in spans:
        if groups and len(groups[-1]) < listed_limit and _alike(groups[-1][0], span):
            groups[-1].append(span)
        else:
            groups.append([span])
    return [SpanGroup(tuple(group)) for group in groups]


def _alike(one: TokenSpan, other: TokenSpan) -> bool:
    return (
        one.start == other.start
        and len(one.token_ids) == len(other.token_ids)
        and list(one.fed) == list(other.fed)
    )
