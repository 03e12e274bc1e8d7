"""Compared windows of all suites as the arms of a result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from evalution.fidelity.divergence import Figures
from evalution.fidelity.lockstep import WindowComparison
from evalution.fidelity.requests import Document, PreparedSuite, Window
from evalution.fidelity.result import (
    Arm,
    ChoiceFlips,
    GreedyDivergence,
    SuiteFidelity,
    TopToken,
    WorstToken,
)
from evalution.fidelity.statistics import (
    bin_by_entropy,
    bin_by_position,
    estimate_contrast,
    make_histogram,
)
from evalution.fidelity.statistics import summarize as summarize_figures
from evalution.parity.agreement import find_parting
from evalution_core import EngineRuntimeError, TextCodec

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WORST = 20
_BEFORE = 24
"""Tokens of text before a position that are shown."""


@dataclass(frozen=True, slots=True)
class ArmRecord:
    """Compared windows of one suite, greedy completions of both sides, and the worst positions."""

    windows: Sequence[WindowComparison]
    reference_completions: Sequence[Sequence[int] | None] | None
    completions: Sequence[Sequence[int] | None] | None
    worst: Sequence[WorstToken] = ()


def list_worst(
    suite: PreparedSuite, windows: Sequence[WindowComparison], codec: TextCodec | None
) -> list[WorstToken]:
    """Return the positions of largest KL in the text around them; none without a tokenizer."""
    if codec is None:
        return []
    places = [
        (worst, document.number, window)
        for document, window, comparison in _pair_windows(suite, windows)
        for worst in comparison.worst
    ]
    places.sort(key=lambda place: -place[0].kl)
    found: list[WorstToken] = []
    for worst, number, window in places[:_WORST]:
        at = window.start + worst.position
        before = window.input_ids[max(0, at - _BEFORE) : at]
        found.append(
            WorstToken(
                number,
                at,
                worst.kl,
                codec.decode(before, skip_special_tokens=False),
                _decode(codec, window.input_ids[at]),
                [TopToken(_decode(codec, token), math.exp(p)) for token, p in worst.reference_top],
                [TopToken(_decode(codec, token), math.exp(p)) for token, p in worst.top],
            )
        )
    return found


def _decode(codec: TextCodec, token_id: int) -> str:
    return codec.decode([token_id], skip_special_tokens=False)


def _pair_windows(
    suite: PreparedSuite, windows: Sequence[WindowComparison]
) -> Iterator[tuple[Document, Window, WindowComparison]]:
    comparisons = iter(windows)
    for document in suite.documents:
        for window in document.windows:
            yield document, window, next(comparisons)


def count_flips(suite: PreparedSuite, windows: Sequence[WindowComparison]) -> ChoiceFlips | None:
    """Count the questions that one side alone answers right; None where there are no questions.

    A side's answer is the choice with the largest sum of log-probabilities, the first of equals.
    """
    questions = changed = lost = won = 0
    pairs = _pair_windows(suite, windows)
    for _, members in groupby(pairs, key=lambda pair: pair[0].number):
        group = list(members)
        document = group[0][0]
        found = [comparison.figures for _, _, comparison in group]
        if not document.right or any(figures is None for figures in found):
            continue
        known = [figures for figures in found if figures is not None]
        before, after = (
            int(np.argmax([figures[name].sum() for figures in known]))
            for name in ("reference_logprob", "logprob")
        )
        questions += 1
        changed += before != after
        was_right, is_right = before in document.right, after in document.right
        lost += was_right and not is_right
        won += is_right and not was_right
    return ChoiceFlips(questions, changed, lost, won) if questions else None


def compare_completions(record: ArmRecord) -> GreedyDivergence | None:
    """Return where free completions part, but for failed ones; None where a side gave none."""
    if record.reference_completions is None or record.completions is None:
        return None
    pairs = zip(record.reference_completions, record.completions, strict=True)
    steps = [
        find_parting(before, after)
        for before, after in pairs
        if before is not None and after is not None
    ]
    parted = [step + 1 for step in steps if step is not None]
    return GreedyDivergence(len(steps), len(steps) - len(parted), parted)


class _Compared:
    """An arm's figures; those of failed windows are left out.

    Each position has the number of its cluster, which no two suites share, and of its window, by
    which arms are paired.
    """

    def __init__(self) -> None:
        self._figures: list[Figures] = []
        self._positions: list[NDArray[np.int64]] = []
        self._clusters: list[int] = []
        self._numbers: dict[tuple[str, int | str], int] = {}
        self.windows: dict[tuple[str, int], int] = {}
        self._is_bound = False
        self._failed = 0

    def add(self, suite: PreparedSuite, windows: Sequence[WindowComparison]) -> None:
        self._failed += suite.failed
        pairs = enumerate(_pair_windows(suite, windows))
        for at, (document, window, comparison) in pairs:
            if comparison.figures is None:
                self._failed += 1
            else:
                self.windows[suite.name, at] = len(self._figures)
                self._figures.append(comparison.figures)
                self._positions.append(np.arange(window.start, len(window.input_ids)))
                key = (suite.name, document.cluster)
                self._clusters.append(self._numbers.setdefault(key, len(self._numbers)))
                self._is_bound |= comparison.vocabulary is None

    @property
    def clusters(self) -> int:
        return len(self._numbers)

    def select(self, chosen: Sequence[int]) -> tuple[Figures, NDArray[np.int64]]:
        """Return figures and cluster of each position of the chosen windows."""
        figures = [self._figures[at] for at in chosen]
        numbers = [self._clusters[at] for at in chosen]
        lengths = [len(each) for each in figures]
        return np.concatenate(figures), np.repeat(numbers, lengths)

    def make_arm(self, **rest: Any) -> Arm:
        """Return the arm with its figures; `rest` are its fields that aren't figures."""
        figures, clusters = self.select(range(len(self._figures)))
        return Arm(
            divergence=summarize_figures(
                figures, clusters, is_lower_bound=self._is_bound, failed=self._failed
            ),
            histogram=make_histogram(figures),
            by_position=bin_by_position(figures, np.concatenate(self._positions)),
            by_entropy=bin_by_entropy(figures),
            **rest,
        )


def summarize(
    suites: Sequence[PreparedSuite],
    candidate: Mapping[str, ArmRecord],
    control: Mapping[str, ArmRecord] | None,
) -> tuple[list[SuiteFidelity], SuiteFidelity]:
    """Return each suite's figures, and those of all positions of all suites.

    Each suite has a window that didn't fail: see `require_figures`.
    """
    arms = {"candidate": candidate, **({} if control is None else {"control": control})}
    found: list[SuiteFidelity] = []
    whole = {name: _Compared() for name in arms}
    for suite in suites:
        each: dict[str, Arm] = {}
        alone = {name: _Compared() for name in arms}
        for name, records in arms.items():
            record = records[suite.name]
            for compared in (alone[name], whole[name]):
                compared.add(suite, record.windows)
            each[name] = alone[name].make_arm(
                flips=count_flips(suite, record.windows),
                greedy=compare_completions(record),
                worst=list(record.worst),
            )
        made = _make_suite(suite.name, suite.kind, alone, each)
        found.append(replace(made, texts=digest_windows(suite.windows)))
    sides = {"candidate": [s.candidate for s in found], "control": [s.control for s in found]}
    both = {
        name: compared.make_arm(
            flips=_add_flips(arm.flips for arm in sides[name] if arm is not None),
            greedy=_add_greedy(arm.greedy for arm in sides[name] if arm is not None),
        )
        for name, compared in whole.items()
    }
    return found, _make_suite("all", suites[0].kind, whole, both)


def _add_flips(suites: Iterable[ChoiceFlips | None]) -> ChoiceFlips | None:
    known = [(f.questions, f.changed, f.right_to_wrong, f.wrong_to_right) for f in suites if f]
    return ChoiceFlips(*map(sum, zip(*known, strict=True))) if known else None


def _add_greedy(suites: Iterable[GreedyDivergence | None]) -> GreedyDivergence | None:
    if not (known := [greedy for greedy in suites if greedy is not None]):
        return None
    steps = [step for greedy in known for step in greedy.first_steps]
    return GreedyDivergence(sum(g.prompts for g in known), sum(g.same for g in known), steps)


def _make_suite(
    name: str, kind: Any, compared: Mapping[str, _Compared], arms: Mapping[str, Arm]
) -> SuiteFidelity:
    contrast = None
    if "control" in arms:
        left, right = compared["candidate"], compared["control"]
        shared = [
            (at, right.windows[key]) for key, at in left.windows.items() if key in right.windows
        ]
        if shared:
            candidate, clusters = left.select([at for at, _ in shared])
            control, _ = right.select([at for _, at in shared])
            contrast = estimate_contrast(candidate, control, clusters)
    count = compared["candidate"].clusters
    return SuiteFidelity(name, kind, count, arms["candidate"], arms.get("control"), contrast)


def digest_windows(windows: Sequence[Window]) -> str:
    """Return 64 bits of the SHA-256 of the windows' ids, in hexadecimal digits."""
    digest = sha256()
    for window in windows:
        digest.update(np.asarray([window.start, *window.input_ids], "<i4").tobytes())
    return digest.hexdigest()[:16]


def require_figures(suite: str, arm: str, windows: Sequence[WindowComparison]) -> None:
    """Raise `EngineRuntimeError` if nothing could be compared, as all windows of a suite failed."""
    if all(comparison.figures is None for comparison in windows):
        reasons = (comparison.failure for comparison in windows)
        raise EngineRuntimeError(
            f"{arm}: nothing of suite {suite!r} could be compared: "
            f"{next(reasons, 'it has no position to compare')}"
        )
