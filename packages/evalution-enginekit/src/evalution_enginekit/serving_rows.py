"""Rows of a serving runtime: the whole list of one token generated at each scored position.

Prompt log-probabilities would take one request for a span, and memory for its positions times the
vocabulary, several times over in Python objects. Here a request holds one row, and the runtime's
cache of prefixes has nearly all that it feeds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from evalution_core.encoding import TokenSpan
from evalution_enginekit.generation import TokenEvent, TokenPrompt
from evalution_enginekit.planning import WrongScoresError
from evalution_enginekit.serving import PromptSource

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from evalution_enginekit.distributions import Rows

_LISTED_VALUES = 1 << 21
"""Log-probabilities that are listed at once; each takes about 100 bytes on its way."""
_PREFIX = -1
"""Key of prompts that fill the cache."""


def generate_rows(
    generate: Callable[[PromptSource], Generator[Sequence[TokenEvent]]],
    spans: Sequence[TokenSpan],
    vocabulary: int,
) -> Iterator[Rows]:
    """Yield the rows of all scored positions, span after span.

    Args:
        generate: runs prompts, as `ServingLoop.generate`.
        spans: whose positions are wanted.
        vocabulary: the number of tokens that the model ranks.

    Raises:
        WrongScoresError: the runtime listed fewer tokens than that.
    """
    import numpy as np  # noqa: PLC0415 - an engine that has no rows needs no NumPy

    source = _PrefixSource(spans, vocabulary)
    with closing(generate(source)) as steps:
        for events in steps:
            for event in events:
                source.accept(event)
            if ready := source.take_rows():
                yield np.stack(ready)


class _PrefixSource:
    """The prompts of all positions in order, so many at once as memory allows.

    The longest prefix of a span comes first, and alone: with it cached, the others are short.
    """

    def __init__(self, spans: Sequence[TokenSpan], vocabulary: int):
        self._prompts = _list_prompts(spans, vocabulary)
        self._vocabulary = vocabulary
        self._ahead = max(1, _LISTED_VALUES // vocabulary)
        self._rows: dict[int, NDArray[np.float32]] = {}
        self._taken = self._delivered = 0
        self._fills_cache = False

    def on_change(self, notify: Callable[[], None]) -> None:
        """Do nothing: prompts are there from the beginning."""

    def cancelled(self) -> list[int]:
        return []

    def take(self, limit: int) -> list[TokenPrompt]:
        taken: list[TokenPrompt] = []
        while (
            len(taken) < limit
            and not self._fills_cache
            and self._taken - self._delivered < self._ahead
            and (prompt := next(self._prompts, None)) is not None
        ):
            taken.append(prompt)
            self._fills_cache = prompt.key == _PREFIX
            self._taken += not self._fills_cache
        return taken

    def accept(self, event: TokenEvent) -> None:
        """Keep the row of an event; raise its error."""
        if event.error is not None:
            raise event.error
        if event.key == _PREFIX:
            self._fills_cache = False
        elif event.top_logprobs:
            self._rows[event.key] = _make_row(event.top_logprobs[0], self._vocabulary)

    def take_rows(self) -> list[NDArray[np.float32]]:
        """Return the rows that follow the delivered ones without a gap."""
        ready: list[NDArray[np.float32]] = []
        while self._delivered in self._rows:
            ready.append(self._rows.pop(self._delivered))
            self._delivered += 1
        return ready


def _list_prompts(spans: Sequence[TokenSpan], vocabulary: int) -> Iterator[TokenPrompt]:
    number = 0
    for span in spans:
        ids = span.token_ids
        if len(ids) - span.start > 1:
            yield TokenPrompt(_PREFIX, span.fed, 1)
        for at in range(span.start, len(ids)):
            yield TokenPrompt(number, ids[:at], 1, logprobs=vocabulary)
            number += 1


def _make_row(listed: Mapping[int, float], vocabulary: int) -> NDArray[np.float32]:
    import numpy as np  # noqa: PLC0415 - as above

    if len(listed) != vocabulary:
        raise WrongScoresError(
            f"the runtime listed {len(listed)} log-probabilities of a vocabulary of {vocabulary}"
        )
    row = np.empty(vocabulary, np.float32)
    row[np.fromiter(listed, np.int64, vocabulary)] = np.fromiter(
        listed.values(), np.float32, vocabulary
    )
    return row
