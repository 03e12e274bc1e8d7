"""Differences between passes, a permutation test of each condition, and the verdict."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations

from evalution.noise.result import (
    CLONED,
    CONDITIONS,
    DETERMINISTIC,
    FAMILY_ERROR,
    RANDOM,
    SEED_IGNORED,
    UNDECIDED,
    Condition,
    Differences,
    Sampling,
)
from evalution.parity.agreement import Failed, Generated, Record, Scored
from evalution.parity.result import absolute_difference

RowKey = tuple[int, int]
"""The suite's number, and the row's index."""
Pass = Mapping[tuple[int, int, int], Record]
"""Answers to all requests, by the row's key and the request's position in its row."""
Matrix = Sequence[Sequence[float]]
_PARTED = 1.0
"""Added to the distance of two answers whose texts differ, as much as a large difference."""
_FARTHEST = 1e6
_PARTING = 0.1
"""Share of sampled texts that the noise of an honest engine may part."""
_THETAS = [10 ** (exponent / 20) for exponent in range(-40, 51)]


@dataclass(slots=True)
class _Pair:
    """Differences between two passes."""

    distances: dict[RowKey, float] = field(default_factory=dict[RowKey, float])
    largest: float = 0.0
    squares: float = 0.0
    tokens: int = 0
    changed: int = 0
    texts: int = 0
    flips: int = 0

    def add(self, row: RowKey, before: Record, after: Record) -> None:
        differences = _list_differences(before, after)
        is_parted = _read_completion(before) != _read_completion(after)
        distance = max(differences, default=0.0)
        self.tokens += len(differences)
        self.largest = max(self.largest, distance)
        if distance:
            self.squares += math.fsum(difference**2 for difference in differences)
        self.texts += is_parted
        self.changed += bool(distance or is_parted)
        distance = min(distance, _FARTHEST) + _PARTED * is_parted
        self.distances[row] = max(self.distances.get(row, 0.0), distance)

    @property
    def mean_square(self) -> float:
        return self.squares / max(self.tokens, 1)


def _read_completion(record: Record) -> object:
    return (record.text, record.token_ids) if isinstance(record, Generated) else None


def _list_differences(before: Record, after: Record) -> list[float]:
    """Differences of the log-probabilities of tokens that stand after the same tokens, in nats."""
    if isinstance(before, Failed) or isinstance(after, Failed):
        return []
    left, right = before.token_logprobs, after.token_logprobs
    if isinstance(before, Scored) and isinstance(after, Scored):
        if left is None or right is None:
            return [absolute_difference(before.logprob, after.logprob)]
        return list(map(absolute_difference, left, right))
    if left is None or right is None or before.token_ids is None or after.token_ids is None:
        return []
    pairs = zip(before.token_ids, after.token_ids, strict=False)
    same = next((at for at, (one, other) in enumerate(pairs) if one != other), len(left))
    return list(map(absolute_difference, left[:same], right[:same]))


def _choose(passed: Pass, questions: Set[RowKey]) -> Mapping[RowKey, int]:
    """The most likely choice of each question; the first of equals."""
    sums: defaultdict[RowKey, list[float]] = defaultdict(list)
    for key, record in passed.items():
        if key[:2] in questions and isinstance(record, Scored):
            sums[key[:2]].append(record.logprob)
    return {row: max(range(len(found)), key=found.__getitem__) for row, found in sums.items()}


class PassComparison:
    """Base passes and passes under a condition, compared pair by pair.

    All passes have the same keys, in the same order. `questions` are the rows that are choices.
    """

    def __init__(self, base: Sequence[Pass], changed: Sequence[Pass], questions: Set[RowKey]):
        self.base = len(base)
        passes = [*base, *changed]
        chosen = [_choose(each, questions) for each in passes]
        self._pairs: dict[tuple[int, int], _Pair] = {}
        for first, second in combinations(range(len(passes)), 2):
            pair = self._pairs[first, second] = _Pair()
            for key, before in passes[first].items():
                pair.add(key[:2], before, passes[second][key])
            pair.flips = sum(chosen[first][row] != chosen[second][row] for row in chosen[first])
        self._count = len(passes)
        self._requests = len(passes[0])

    def list_distances(self) -> Iterable[Matrix]:
        """Yield the matrix of distances between passes, base first, of each row."""
        for row in self._pairs[0, 1].distances:
            matrix = [[0.0] * self._count for _ in range(self._count)]
            for (first, second), pair in self._pairs.items():
                matrix[first][second] = matrix[second][first] = pair.distances[row]
            yield matrix

    def summarize_repeats(self) -> tuple[Differences, float]:
        """Return differences among base passes, and their mean square in nats²."""
        return self._summarize([at for at in self._pairs if at[1] < self.base])

    def summarize_changes(self) -> tuple[Differences, float]:
        """Return differences between a base pass and a changed one, and their mean square."""
        return self._summarize([at for at in self._pairs if at[0] < self.base <= at[1]])

    def _summarize(self, chosen: Sequence[tuple[int, int]]) -> tuple[Differences, float]:
        pairs = [self._pairs[at] for at in chosen]
        square = math.fsum(pair.mean_square for pair in pairs) / len(pairs)
        found = Differences(
            pairs=len(pairs),
            largest=max(pair.largest for pair in pairs),
            rms=math.sqrt(square),
            changed=sum(pair.changed for pair in pairs) / (len(pairs) * max(self._requests, 1)),
            rows=len({row for pair in pairs for row, far in pair.distances.items() if far}),
            flips=max(pair.flips for pair in pairs),
            texts=max(pair.texts for pair in pairs),
            tokens=sum(pair.tokens for pair in pairs),
        )
        return found, square


# the test


@cache
def _list_labels(passes: int, changed: int) -> Sequence[tuple[int, ...]]:
    """All ways to call so many passes changed; the last is the one in which they were asked."""
    return list(combinations(range(passes), changed))


def bound_chance(rows: Iterable[Matrix], base: int) -> float:
    """Return an upper bound of the chance that passes of one kind differ as much by label.

    Of each row, a matrix of distances between passes of which the first `base` are base passes. If
    the condition has no effect, the passes of a row are exchangeable: any choice of changed ones
    was as likely (Fisher's permutation test; Good, Permutation Tests, 1994). The statistic is the
    mean distance between base and changed passes less that among base passes, so that a shift
    shows, and passes that vary more than base passes do. Each row gives a rank among all
    labellings, and ranks of independent rows are added up as S = -Σ ln p. Chernoff's bound of their
    exact distribution, min over θ of E[exp(θ S)] exp(-θ s), needs no assumption about the noise,
    however few rows there are (Annals of Mathematical Statistics 23, 1952).
    """
    observed = 0.0
    shapes: Counter[tuple[tuple[int, int], ...]] = Counter()
    labels = 1
    for matrix in rows:
        if any(map(any, matrix)):
            reached, shape, labels = _rank_labels(matrix, base)
            observed += math.log(labels / reached)
            shapes[shape] += 1
    if not shapes:
        return 1.0
    bounds = (_bound_tail(shapes, labels, theta) - theta * observed for theta in _THETAS)
    return math.exp(min(0.0, *bounds))


def _rank_labels(matrix: Matrix, base: int) -> tuple[int, tuple[tuple[int, int], ...], int]:
    """Return how many labellings reach the observed statistic, the same of all, and their number.

    The second has for each value of the statistic (labellings that reach it, labellings with it).
    """
    changed = len(matrix) - base
    sums = [math.fsum(row) for row in matrix]
    total = math.fsum(sums) / 2
    across, among = base * changed, base * (base - 1) / 2
    values: list[float] = []
    for chosen in _list_labels(len(matrix), changed):
        inner = sum(matrix[one][other] for one, other in combinations(chosen, 2))
        touching = sum(sums[at] for at in chosen) - inner
        # Rounded, so that equal values stay equal however they are added up.
        value = ((touching - inner) / across - (total - touching) / among) / total
        values.append(round(value, 9))
    shape: list[tuple[int, int]] = []
    reached = 0
    for _, count in sorted(Counter(values).items(), reverse=True):
        reached += count
        shape.append((reached, count))
    observed = sum(value >= values[-1] for value in values)
    return observed, tuple(shape), len(values)


def _bound_tail(
    shapes: Mapping[tuple[tuple[int, int], ...], int], labels: int, theta: float
) -> float:
    """Return ln E[exp(θ S)], added up over rows."""
    total = 0.0
    for shape, rows in shapes.items():
        terms = [
            math.log(count / labels) + theta * math.log(labels / reached)
            for reached, count in shape
        ]
        largest = max(terms)
        total += rows * (largest + math.log(math.fsum(math.exp(t - largest) for t in terms)))
    return total


# conditions and verdict


def judge_conditions(
    comparisons: Mapping[str, PassComparison],
) -> tuple[Differences, float | None, list[Condition]]:
    """Return differences of repeats, their share of all variance, and each condition.

    The variance of a condition is the mean square of its differences less that of repeats; shares
    are of the sum of these and of the repeats', over the conditions that count. Chances are
    multiplied by the number of conditions (Bonferroni).
    """
    repeats, noise = next(iter(comparisons.values())).summarize_repeats()
    found: list[Condition] = []
    for name, comparison in comparisons.items():
        differences, square = comparison.summarize_changes()
        chance = bound_chance(comparison.list_distances(), comparison.base)
        p_value = min(1.0, chance * len(comparisons))
        excess = max(0.0, square - comparison.summarize_repeats()[1])
        variance = excess if p_value <= FAMILY_ERROR and math.isfinite(square) else None
        found.append(Condition(name, differences, p_value, variance))
    total = noise + math.fsum(condition.variance or 0.0 for condition in found)
    if not 0.0 < total < math.inf:
        return repeats, None, found
    shared = [
        one if one.variance is None else replace(one, share=one.variance / total) for one in found
    ]
    return repeats, noise / total, shared


def find_verdicts(
    repeats: Differences, conditions: Sequence[Condition], sampling: Sampling | None
) -> list[str]:
    """Return all that holds of the engine.

    Requests that run together also run in another order, so an engine whose numbers depend on the
    order alone isn't called batch-variant too.
    """
    found = [RANDOM] if repeats.changed else []
    counted = [condition.name for condition in conditions if condition.counts]
    if "order" in counted:
        counted = [name for name in counted if CONDITIONS[name] != CONDITIONS["batch"]]
    found += dict.fromkeys(CONDITIONS[name] for name in counted)
    if not found:
        is_same = not any(condition.differences.changed for condition in conditions)
        found.append(DETERMINISTIC if is_same else UNDECIDED)
    return [*found, *(_judge_sampling(sampling) if sampling is not None else ())]


def _judge_sampling(found: Sampling) -> Iterable[str]:
    """Yield the faults of sampling.

    A seed is ignored if another one changes nothing, where independent samples would differ. Or of
    the texts that another one changes, the same one loses more than half, and more than noise would
    that parts a tenth of all texts (exact binomial test).
    """
    if found.kept is not None and found.other_seed is not None:
        differing, chance = found.prompts - found.other_seed, found.other_seed_chance
        lost = differing - found.kept
        is_fixed = not differing and chance is not None and chance <= FAMILY_ERROR
        is_lost = 2 * lost > differing and _find_tail(differing, lost) <= FAMILY_ERROR
        if is_fixed or is_lost:
            yield SEED_IGNORED
    chance = found.cloned_chance
    if found.cloned == found.prompts and chance is not None and chance <= FAMILY_ERROR:
        yield CLONED


def _find_tail(texts: int, least: int) -> float:
    """Return the chance that noise parts at least so many of the texts."""
    return math.fsum(
        math.comb(texts, many) * _PARTING**many * (1 - _PARTING) ** (texts - many)
        for many in range(least, texts + 1)
    )
