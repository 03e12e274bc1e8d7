"""Answers of two engines to one suite, kept small, and how far they agree."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from evalution.error_boundary import find_answer_problem
from evalution.parity.result import (
    NEAR_TIE,
    ChoiceFlip,
    DifferenceStats,
    Divergence,
    SuiteParity,
    TokenDifference,
    Uncompared,
    absolute_difference,
    summarize_differences,
)
from evalution.redaction import mask_text
from evalution_core import GenerationOutput, RequestFailure
from evalution_core.kinds import RequestKind
from evalution_core.requests import Output

Key = tuple[int, int]
"""The row's index, and which of its requests."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A continuation's or a text's score; None where the engine reports nothing."""

    logprob: float
    token_count: int
    token_logprobs: array[float] | None
    token_ids: array[int] | None
    is_greedy: bool | None = None
    truncated: int | None = None


@dataclass(frozen=True, slots=True)
class Generated:
    """A completion; `gaps` are between the two most likely tokens of each step, in nats.

    `rivals` are the ids of that of both which wasn't chosen; -1 where only one is known.
    """

    text: str
    token_ids: array[int] | None
    token_logprobs: array[float] | None
    gaps: array[float] | None
    rivals: array[int] | None
    truncated: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Reason of a missing answer."""

    reason: str


Record = Scored | Generated | Failed


def make_record(answer: Output | RequestFailure) -> Record:
    """An answer's record; one that could not be scored is a failure."""
    if isinstance(answer, RequestFailure):
        return Failed(mask_text(f"{type(answer.error).__name__}: {answer.error}"))
    if (fault := find_answer_problem(answer)) is not None:
        return Failed(fault)
    if isinstance(answer, GenerationOutput):
        if any(map(math.isnan, answer.token_logprobs or ())):
            return Failed("a token's log-probability is NaN")
        return Generated(
            answer.text,
            _pack_integers(answer.token_ids),
            _pack_floats(answer.token_logprobs),
            *_measure_gaps(answer.top_logprobs, answer.token_ids or ()),
            answer.truncated_tokens,
        )
    values = _pack_floats(answer.token_logprobs)
    if values is not None and len(values) != answer.token_count:
        return Failed(f"{len(values)} log-probabilities came for {answer.token_count} tokens")
    return Scored(
        float(answer.logprob),
        int(answer.token_count),
        values,
        _pack_integers(answer.token_ids),
        getattr(answer, "is_greedy", None),
        getattr(answer, "truncated_tokens", None),
    )


def _pack_floats(values: Sequence[float] | None) -> array[float] | None:
    return None if values is None else array("d", values)


def _pack_integers(values: Sequence[int] | None) -> array[int] | None:
    return None if values is None else array("q", values)


def _measure_gaps(
    top_logprobs: Sequence[dict[int, float]] | None, token_ids: Sequence[int]
) -> tuple[array[float] | None, array[int] | None]:
    """Return each step's gap between the first two, and the rival; NaN and -1 of fewer."""
    if top_logprobs is None:
        return None, None
    gaps, rivals = array("d"), array("q")
    for at, step in enumerate(top_logprobs):
        best = sorted(step, key=step.__getitem__, reverse=True)[:2]
        gaps.append(step[best[0]] - step[best[1]] if len(best) > 1 else math.nan)
        chosen = token_ids[at] if at < len(token_ids) else None
        rivals.append(next((each for each in reversed(best) if each != chosen), -1))
    return gaps, rivals


_LISTED = 100
"""Flips and divergences that are listed one by one; all are counted."""
_WORST = 20
_POINTS = 2000
_AROUND = 40
"""Characters shown of each text from where they part."""


def compare_answers(
    name: str,
    kind: RequestKind,
    left: Mapping[Key, Record],
    right: Mapping[Key, Record],
    *,
    by_ids: int,
) -> SuiteParity:
    """Compare the answers of two engines to the same requests, in whatever order they came."""
    found = _Agreement()
    for key in sorted(left):
        found.add(key, left[key], right[key])
    scored = kind is RequestKind.LOGLIKELIHOOD
    flips, questions = _find_flips(left, right) if scored else ([], 0)
    return found.result(name, kind, len(left), by_ids, flips, questions)


class _Agreement:
    """Takes pairs of records in the order of their keys."""

    def __init__(self) -> None:
        self._uncompared = Uncompared()
        self._compared = 0
        self._left, self._right = array("d"), array("d")
        self._has_tokens = False
        self._sums = array("d")
        self._sum_per_token = 0.0
        self._greedy = 0
        self._greedy_rows: list[int] = []
        self._texts = 0
        self._divergences: list[Divergence] = []
        self._worst: list[tuple[float, int, TokenDifference]] = []

    def add(self, key: Key, left: Record, right: Record) -> None:
        if isinstance(left, Failed) or isinstance(right, Failed):
            self._fail(key, left, right)
        elif _is_cut_apart(left.truncated, right.truncated):
            self._uncompared.cut_apart += 1
        elif isinstance(left, Generated) and isinstance(right, Generated):
            self._compared += 1
            self._add_texts(key, left, right)
        elif isinstance(left, Scored) and isinstance(right, Scored):
            self._add_scores(key, left, right)

    def result(
        self,
        name: str,
        kind: RequestKind,
        requests: int,
        by_ids: int,
        flips: Sequence[ChoiceFlip],
        questions: int,
    ) -> SuiteParity:
        near = sum(found.is_near_tie for found in self._divergences)
        near_flips = sum(flip.is_near_tie for flip in flips)
        return SuiteParity(
            name=name,
            kind=kind.value,
            requests=requests,
            compared=self._compared,
            by_ids=by_ids,
            uncompared=self._uncompared,
            tokens=self._summarize_tokens(),
            sums=summarize_differences(self._sums) if self._sums else None,
            sum_per_token=self._sum_per_token,
            choices=questions,
            flips=len(flips) - near_flips,
            near_flips=near_flips,
            greedy=self._greedy,
            greedy_apart=len(self._greedy_rows),
            texts=self._texts,
            divergences=len(self._divergences) - near,
            near_divergences=near,
            worst_tokens=[found for *_, found in sorted(self._worst, reverse=True)],
            flip_list=list(flips[:_LISTED]),
            greedy_rows=self._greedy_rows[:_LISTED],
            divergence_list=self._divergences[:_LISTED],
            points=self._sample_points(),
        )

    def _fail(self, key: Key, left: Record, right: Record) -> None:
        found = self._uncompared
        has_left, has_right = (not isinstance(record, Failed) for record in (left, right))
        found.both_failed += not has_left and not has_right
        found.left_failed += has_right
        found.right_failed += has_left
        for side, record in (("left", left), ("right", right)):
            if found.first_failure is None and isinstance(record, Failed):
                found.first_failure = f"row {key[0]}, request {key[1]}, {side}: {record.reason}"

    def _add_scores(self, key: Key, left: Scored, right: Scored) -> None:
        if left.token_count != right.token_count:
            self._uncompared.counted_apart += 1
            return
        self._compared += 1
        difference = absolute_difference(left.logprob, right.logprob)
        self._sums.append(difference)
        if math.isfinite(difference):
            shared = difference / max(left.token_count, 1)
            self._sum_per_token = max(self._sum_per_token, shared)
        if left.is_greedy is not None and right.is_greedy is not None:
            self._greedy += 1
            if left.is_greedy != right.is_greedy:
                self._greedy_rows.append(key[0])
        if left.token_logprobs is not None and right.token_logprobs is not None:
            self._add_tokens(key, left.token_logprobs, right.token_logprobs, left.token_ids)

    def _add_texts(self, key: Key, left: Generated, right: Generated) -> None:
        self._texts += 1
        token = find_parting(left.token_ids, right.token_ids)
        if left.token_logprobs is not None and right.token_logprobs is not None:
            end = len(left.token_logprobs) if token is None else token
            same = left.token_logprobs[:end], right.token_logprobs[:end]
            if left.token_ids is not None and right.token_ids is not None:
                self._add_tokens(key, *same, left.token_ids)
        if left.text == right.text:
            return
        character = find_parting(left.text, right.text)
        assert character is not None
        gap = None if token is None else _find_gap(token, left, right)
        texts = (text[character : character + _AROUND] for text in (left.text, right.text))
        is_near_tie = gap is not None and gap < NEAR_TIE
        self._divergences.append(Divergence(*key, token, character, gap, is_near_tie, *texts))

    def _add_tokens(
        self,
        key: Key,
        left: Sequence[float],
        right: Sequence[float],
        token_ids: Sequence[int] | None,
    ) -> None:
        self._has_tokens = True
        for position, (before, after) in enumerate(zip(left, right, strict=False)):
            self._left.append(before)
            self._right.append(after)
            size = absolute_difference(before, after)
            if size == 0.0 or (len(self._worst) == _WORST and size <= self._worst[0][0]):
                continue
            known = token_ids or ()
            token_id = known[position] if position < len(known) else None
            found = TokenDifference(
                *key, position, token_id, _keep_finite(before), _keep_finite(after)
            )
            self._keep_worst(size, found)

    def _keep_worst(self, size: float, found: TokenDifference) -> None:
        """A heap whose first entry is the smallest of the worst; of equals, the latest."""
        push = heapq.heappush if len(self._worst) < _WORST else heapq.heapreplace
        push(self._worst, (size, -len(self._left), found))

    def _summarize_tokens(self) -> DifferenceStats | None:
        if not self._has_tokens:
            return None
        return summarize_differences(map(absolute_difference, self._left, self._right))

    def _sample_points(self) -> list[tuple[float, float]]:
        step = max(1, math.ceil(len(self._left) / _POINTS))
        pairs = zip(self._left[::step], self._right[::step], strict=True)
        return [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]


def _find_flips(
    left: Mapping[Key, Record], right: Mapping[Key, Record]
) -> tuple[list[ChoiceFlip], int]:
    """Questions whose most likely choice differs, and how many questions there are."""
    flips: list[ChoiceFlip] = []
    questions = 0
    for row, keys in groupby(sorted(left), key=lambda key: key[0]):
        ordered = list(keys)
        before, after = _list_sums(left, ordered), _list_sums(right, ordered)
        if before is None or after is None or len(ordered) < 2:
            continue
        questions += 1
        chosen, other = _find_highest(before), _find_highest(after)
        if chosen != other:
            gap = max(absolute_difference(side[chosen], side[other]) for side in (before, after))
            flips.append(ChoiceFlip(row, chosen, other, _keep_finite(gap), gap < NEAR_TIE))
    return flips, questions


def _list_sums(records: Mapping[Key, Record], keys: Sequence[Key]) -> list[float] | None:
    found = [records[key] for key in keys]
    sums = [record.logprob for record in found if isinstance(record, Scored)]
    return sums if len(sums) == len(found) else None


def _find_highest(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _is_cut_apart(left: int | None, right: int | None) -> bool:
    return left is not None and right is not None and left != right


def find_parting(left: Sequence[object] | None, right: Sequence[object] | None) -> int | None:
    """The first position at which two sequences differ; None if they don't, or aren't known."""
    if left is None or right is None:
        return None
    for position, (this, that) in enumerate(zip(left, right, strict=False)):
        if this != that:
            return position
    return None if len(left) == len(right) else min(len(left), len(right))


def _find_gap(token: int, left: Generated, right: Generated) -> float | None:
    """Return the larger of both sides' gaps between the tokens of both; None where none is known.

    A side knows its two likeliest alone: of a third one, only that its gap is at least as large.
    The token that ends a text has no id, and counts as one of the two.
    """
    found: list[float] = []
    for side, other in ((left, right), (right, left)):
        gaps, rivals, ids = side.gaps, side.rivals, other.token_ids or ()
        if gaps is None or rivals is None or token >= len(gaps) or math.isnan(gaps[token]):
            continue
        if token >= len(ids) or ids[token] == rivals[token] or gaps[token] >= NEAR_TIE:
            found.append(gaps[token])
    return max(found, default=None)


def _keep_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
