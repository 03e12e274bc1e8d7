"""Two sides read window by window at the same pace, and compared block by block."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from evalution.error_boundary import wrap_errors
from evalution.fidelity.divergence import (
    SLACK,
    TOP,
    Figures,
    Logprobs,
    TopRows,
    compare_rows,
    compare_top,
    pack_top,
    select_top,
)
from evalution.fidelity.requests import Window
from evalution_core import (
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    EngineRuntimeError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RequestFailure,
    UnsupportedRequestError,
)
from evalution_core.kinds import RequestKind
from evalution_core.requests import DistributionRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

Block: TypeAlias = Logprobs | TopRows
"""Consecutive positions of a window: whole rows, or the most likely tokens of each."""
Blocks = Generator[tuple[int, Block | RequestFailure]]
"""Blocks of windows by their index, in order; a failure is the last of its window."""

_WINDOWS_AT_ONCE = 16
_WORST = 3
"""Positions of a window whose likeliest tokens are kept."""


class RowSource(Protocol):
    """Something that has distributions: a session, or a file of recorded ones."""

    def read(self, windows: Sequence[Window]) -> Blocks: ...


@dataclass(frozen=True, slots=True)
class SessionRows:
    """Whole rows of a session."""

    session: BaseInferenceSession

    def read(self, windows: Sequence[Window]) -> Blocks:
        requests = (
            (at, DistributionRequest(window.input_ids, window.start))
            for at, window in enumerate(windows)
        )
        with wrap_errors("distributions"):
            for key, answer in self.session.distributions(requests):
                if isinstance(answer, RequestFailure):
                    yield key, answer
                else:
                    yield key, np.asarray(answer.rows)


@dataclass(frozen=True, slots=True)
class SessionTops:
    """The `count` most likely tokens of a session, which has no rows."""

    session: BaseInferenceSession
    count: int

    def read(self, windows: Sequence[Window]) -> Blocks:
        waiting = iter(enumerate(windows))
        while some := list(islice(waiting, _WINDOWS_AT_ONCE)):
            requests = [(at, self._make_request(window)) for at, window in some]
            with wrap_errors("the most likely tokens"):
                kind = RequestKind.LOGLIKELIHOOD
                answers = dict(kind.open_stream(self.session, requests))
            for at, window in some:
                yield at, _parse_top(answers.get(at), window)

    def _make_request(self, window: Window) -> LoglikelihoodRequest:
        return LoglikelihoodRequest(
            context_input_ids=window.input_ids[: window.start],
            continuation_input_ids=window.scored_ids,
            top_logprobs=self.count,
        )


def _parse_top(answer: object, window: Window) -> TopRows | RequestFailure:
    if isinstance(answer, RequestFailure):
        return answer
    if not isinstance(answer, LoglikelihoodOutput) or answer.top_logprobs is None:
        return RequestFailure(EngineRuntimeError("the session gave no most likely tokens"))
    tops, logprobs = answer.top_logprobs, answer.token_logprobs
    if logprobs is None or not len(tops) == len(logprobs) == len(window.scored_ids):
        text = f"{len(tops)} positions came for {len(window.scored_ids)}: the context was cut"
        return RequestFailure(EngineRuntimeError(text))
    rows = pack_top(tops, logprobs)
    is_whole = np.exp(rows.logprobs).sum(1) <= 1 + SLACK
    if is_whole.all() and not np.isnan(rows.text_logprobs).any():
        return rows
    text = "a log-probability is NaN, or those of a position belong to more than 1 together"
    return RequestFailure(EngineRuntimeError(text))


def open_rows(session: BaseInferenceSession, count: int) -> RowSource:
    """Return whole rows of a session where it has them, else its most likely tokens.

    Raises:
        UnsupportedRequestError: it has neither.
    """
    with wrap_errors("capabilities"):
        capabilities = session.capabilities
    if Capability.DISTRIBUTIONS in capabilities:
        return SessionRows(session)
    if Capability.PROMPT_TOP_LOGPROBS in capabilities:
        return SessionTops(session, count)
    raise UnsupportedRequestError(
        f"{type(session).__name__} gives neither distributions nor the most likely tokens of a "
        "given text (capabilities distributions, prompt_top_logprobs), so nothing can be compared; "
        "compare its scores by `evalution parity`"
    )


@dataclass(frozen=True, slots=True)
class WorstPosition:
    """A position of a window, with the likeliest ids of both sides and their log-probabilities."""

    position: int
    kl: float
    reference_top: list[tuple[int, float]]
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class WindowComparison:
    """Figures of a window's positions; without them the reason that there are none.

    `vocabulary` is the number of tokens of a row; None if only the most likely were compared.
    """

    figures: Figures | None
    worst: Sequence[WorstPosition] = ()
    vocabulary: int | None = None
    failure: str | None = None


class _Reader:
    """The blocks of one side."""

    def __init__(self, side: RowSource, windows: Sequence[Window], name: str):
        self._windows = windows
        self._blocks = side.read(windows)
        self._name = name
        self._at = -1
        self._left = 0

    def begin(self, at: int) -> None:
        """Go to a window, past what is left of those before it."""
        while self._left:
            self.next()
        self._at, self._left = at, len(self._windows[at].scored_ids)

    def next(self) -> Block | RequestFailure:
        """Return the next block of the window."""
        found = next(self._blocks, None)
        if found is None or found[0] != self._at:
            raise EngineRuntimeError(
                f"{self._name}: the rows of window {self._at + 1} are incomplete or out of order"
            )
        _, block = found
        self._left = 0 if isinstance(block, RequestFailure) else self._left - len(block)
        if self._left < 0:
            raise EngineRuntimeError(f"{self._name}: more rows came than positions are compared")
        return block

    def close(self) -> None:
        self._blocks.close()


def compare_windows(
    reference: RowSource, side: RowSource, windows: Sequence[Window]
) -> Iterator[WindowComparison]:
    """Compare two sides, a window after the other; at any time a block of each is held.

    Raises:
        ConfigurationError: the two have vocabularies of different size.
        EngineRuntimeError: a side gave other rows than were asked for.
    """
    left = _Reader(reference, windows, "the reference")
    right = _Reader(side, windows, "the other side")
    try:
        for at, window in enumerate(windows):
            left.begin(at)
            right.begin(at)
            yield _compare_window(left, right, window)
    finally:
        left.close()
        right.close()


def _compare_window(left: _Reader, right: _Reader, window: Window) -> WindowComparison:
    ids = np.asarray(window.scored_ids)
    figures: list[Figures] = []
    worst: list[WorstPosition] = []
    ahead: dict[_Reader, Block] = {}
    vocabulary: int | None = None
    done = 0
    while done < len(ids):
        for reader, name in ((left, "the reference"), (right, "the other side")):
            if reader in ahead:
                continue
            block = reader.next()
            if isinstance(block, RequestFailure):
                return WindowComparison(None, failure=f"{name}: {block.error}")
            ahead[reader] = block
        count = min(len(ahead[left]), len(ahead[right]))
        before, after = (_slice_block(block, 0, count) for block in (ahead[left], ahead[right]))
        if not isinstance(before, TopRows) and not isinstance(after, TopRows):
            vocabulary = before.shape[1]
        part = ids[done : done + count]
        found = _compare_blocks(before, after, part)
        worst = _find_worst(worst, found, before, after, done)
        figures.append(found)
        done += count
        for reader, block in list(ahead.items()):
            if len(block) > count:
                ahead[reader] = _slice_block(block, count, len(block))
            else:
                del ahead[reader]
    return WindowComparison(np.concatenate(figures), worst, vocabulary)


def _compare_blocks(before: Block, after: Block, ids: NDArray[Any]) -> Figures:
    """Compare blocks of the same positions.

    Raises:
        ConfigurationError: their vocabularies have different sizes.
    """
    if isinstance(before, TopRows) or isinstance(after, TopRows):
        return compare_top(before, after, ids)
    if before.shape[1] != after.shape[1]:
        raise ConfigurationError(
            f"the reference has a vocabulary of {before.shape[1]} tokens and the other side one of "
            f"{after.shape[1]}: fidelity holds two ways of serving one model against each other"
        )
    return compare_rows(before, after, ids)


def _find_worst(
    known: list[WorstPosition], figures: Figures, before: Block, after: Block, begin: int
) -> list[WorstPosition]:
    """Return the worst positions, of those known and those of two blocks that begin at `begin`."""
    kl = figures["kl"]
    least = known[-1].kl if len(known) == _WORST else 0.0
    found = [
        WorstPosition(begin + at, float(kl[at]), _list_top(before, at), _list_top(after, at))
        for at in np.argsort(-kl, kind="stable")[:_WORST].tolist()
        if kl[at] > least
    ]
    return sorted([*known, *found], key=lambda worst: -worst.kl)[:_WORST]


def _list_top(block: Block, at: int) -> list[tuple[int, float]]:
    """Return the likeliest ids of a position with their log-probabilities, best first."""
    row = _slice_block(block, at, at + 1)
    top = row if isinstance(row, TopRows) else select_top(row, TOP, np.zeros(1, np.int64))
    pairs = zip(top.token_ids[0, :TOP].tolist(), top.logprobs[0, :TOP].tolist(), strict=True)
    return [(token_id, logprob) for token_id, logprob in pairs if token_id >= 0]


def _slice_block(block: Block, begin: int, end: int) -> Block:
    part = slice(begin, end)
    if isinstance(block, TopRows):
        return TopRows(block.token_ids[part], block.logprobs[part], block.text_logprobs[part])
    return block[part]
