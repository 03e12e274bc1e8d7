"""Scoring down the trie of shared prefixes, level by level, as rows of a stateful model.

The sequences of a run continue those of the run before it, and any number may continue the same
one: the model is told by `beam_idx`, which beam search has it for. So a prefix is run once, whoever
shares it. Where the children of one level don't fit into a run, the state is put back for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy
from numpy.typing import NDArray

from evalution_enginekit import (
    ScoringPlan,
    Segment,
    Target,
    TokenScore,
    TokenSpan,
    plan_scoring,
)
from evalution_enginekit.planning import shared_prefix
from evalution_openvino.stateful import Logits, Pass, State, StatefulRequest
from evalution_transformers.scoring import Tally

_LEAST_KEPT = 8
"""Shared tokens from which continuing behind a saved beginning beats running it again."""
_WORTHWHILE = 64
"""Tokens from which a run costs by its tokens, rather than by reading all weights once."""
_LEAST_FILLED = 0.8
"""The share of the longest branch that another has to have, to be run with it then."""
_ROWS_AT_ONCE = 256
"""Rows of logits that are worked on at a time."""

_Mask = NDArray[numpy.int64]


@dataclass(frozen=True, slots=True)
class Fitness:
    """What a model's runs may look like and still give its own logits.

    `shares`: a run may continue another, padding and all; `cuts`: and also a part of it. `pads`:
    sequences of one run may differ in length.
    """

    shares: bool
    cuts: bool
    pads: bool


@dataclass(slots=True)
class Branch:
    """Tokens behind `depth` others, and the rows that are read there."""

    depth: int
    token_ids: list[int]
    targets: Sequence[Target]
    children: list[Branch] = field(default_factory=list["Branch"])


class PrefixWalk:
    """Scores spans with every shared prefix run once, and keeps the last head for the next call.

    Args:
        request: the model; nothing else may run on it.
        fitness: what it allows.
        pass_tokens: tokens of one run, padding included, until memory teaches better.
        state_tokens: tokens whose keys and values may be held at once.
    """

    def __init__(
        self, request: StatefulRequest, fitness: Fitness, *, pass_tokens: int, state_tokens: int
    ):
        self._request = request
        self._fitness = fitness
        self._pass_tokens = pass_tokens
        self._state_tokens = state_tokens
        self._head: tuple[list[int], State] | None = None

    def forget(self) -> None:
        """Free the saved head and what the model holds."""
        self._head = None
        self._request.reset()

    def score(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        """After each run, the scores that are complete, in the order of the spans."""
        done = 0
        while done < len(spans):
            try:
                for scores in self._attempt(spans[done:]):
                    done += len(scores)
                    yield scores
            except MemoryError:
                self.forget()
                if self._pass_tokens == 1:
                    raise
                self._pass_tokens = max(1, self._pass_tokens // 2)
                self._state_tokens = max(1, self._state_tokens // 2)

    def _attempt(self, spans: Sequence[TokenSpan]) -> Iterator[list[TokenScore]]:
        tally = Tally(spans)
        for targets, logits in self._runs(spans):
            for target, logprob, greedy in scored(targets, logits):
                tally.add(target.span, target.slot, logprob, greedy)
            yield tally.take()

    def _runs(self, spans: Sequence[TokenSpan]) -> Iterator[tuple[list[Target], Logits]]:
        self._request.reset()
        if not self._fitness.shares:
            whole = [(0, branch) for branch in self._whole(spans)]
            yield from _Walk(self._request, self._groups).down(whole, [])
            return
        branches = roots(plan_scoring(spans), self._pass_tokens)
        walk = _Walk(self._request, self._groups)
        path, masks = self._behind_head(branches)
        while len(branches) == 1:
            yield walk.run([(0, branches[0])], masks)
            path += branches[0].token_ids
            masks = [numpy.ones(self._request.columns, numpy.int64)]
            branches = branches[0].children
        state = None
        if branches and len(path) >= _LEAST_KEPT:
            state = self._request.save()
            self._head = (path, state)
        yield from walk.down([(0, branch) for branch in branches], masks, state)

    def _behind_head(self, branches: Sequence[Branch]) -> tuple[list[int], list[_Mask]]:
        """Put the saved head back, as far as the sole root begins with it, and cut it off there."""
        if self._head is None or len(branches) != 1:
            return [], []
        token_ids, state = self._head
        root = branches[0]
        free = min((t.position for t in root.targets), default=len(root.token_ids) - 1)
        shared = shared_prefix(token_ids, root.token_ids[:free])
        if shared < _LEAST_KEPT or not (self._fitness.cuts or shared == len(token_ids)):
            return [], []
        self._request.restore(state.first(shared))
        path, root.token_ids = root.token_ids[:shared], root.token_ids[shared:]
        root.depth += shared
        return path, [numpy.ones(shared, numpy.int64)]

    def _whole(self, spans: Sequence[TokenSpan]) -> Iterator[Branch]:
        """A root for each sequence, with no regard to what they share."""
        same: dict[tuple[int, ...], list[Target]] = {}
        for at, span in enumerate(spans):
            found = same.setdefault(tuple(span.fed), [])
            found += (
                Target(position, span.token_ids[position + 1], at, position + 1 - span.start)
                for position in range(span.start - 1, len(span.token_ids) - 1)
            )
        return (Branch(0, list(token_ids), targets) for token_ids, targets in same.items())

    def _groups(self, lengths: Sequence[int], columns: int) -> Iterator[list[int]]:
        """Which branches are run together behind as many columns, longest first.

        A run that is worth its while isn't filled up with branches that would be mostly padding.
        """
        most = max(1, self._state_tokens // (columns + max(lengths)))
        group: list[int] = []
        for at in sorted(range(len(lengths)), key=lambda at: -lengths[at]):
            longest = lengths[group[0]] if group else lengths[at]
            full = len(group) >= most or longest * (len(group) + 1) > self._pass_tokens
            worthwhile = longest * len(group) >= _WORTHWHILE or not self._fitness.pads
            least = _LEAST_FILLED if self._fitness.pads else 1
            if group and (full or (worthwhile and lengths[at] < least * longest)):
                yield group
                group = []
            group.append(at)
        if group:
            yield group


_Grouping = Callable[[Sequence[int], int], Iterator[list[int]]]


@dataclass(frozen=True, slots=True)
class _Walk:
    request: StatefulRequest
    groups: _Grouping

    def down(
        self, branches: list[tuple[int, Branch]], masks: list[_Mask], state: State | None = None
    ) -> Iterator[tuple[list[Target], Logits]]:
        """Run branches and all below them; each continues a sequence that the model holds.

        `masks` are those sequences' and `state` is a copy of the model's state, if there is one.
        """
        if not branches:
            return
        lengths = [len(branch.token_ids) for _, branch in branches]
        groups = list(self.groups(lengths, self.request.columns))
        if state is None and masks and len(groups) > 1:
            state = self.request.save()
        for number, group in enumerate(groups):
            if number and state is not None:
                self.request.restore(state)
            elif number:
                self.request.reset()
            chosen = [branches[at] for at in group]
            found = self.run(chosen, masks)
            longest = max(len(branch.token_ids) for _, branch in chosen)
            extended = [_extended(masks, at, branch, longest) for at, branch in chosen]
            yield found
            below = [(at, child) for at, (_, b) in enumerate(chosen) for child in b.children]
            yield from self.down(below, extended)

    def run(
        self, chosen: Sequence[tuple[int, Branch]], masks: Sequence[_Mask]
    ) -> tuple[list[Target], Logits]:
        """One run of branches side by side, the shorter ones padded on the right."""
        longest = max(len(branch.token_ids) for _, branch in chosen)
        token_ids = [
            [*branch.token_ids, *branch.token_ids[-1:] * (longest - len(branch.token_ids))]
            for _, branch in chosen
        ]
        positions = [range(branch.depth, branch.depth + longest) for _, branch in chosen]
        targets = [target for _, branch in chosen for target in branch.targets]
        rows = [
            at * longest + target.position - branch.depth
            for at, (_, branch) in enumerate(chosen)
            for target in branch.targets
        ]
        wanted, place = numpy.unique(numpy.array(rows, numpy.int64), return_inverse=True)
        logits = self.request.run(
            Pass(
                numpy.array(token_ids, numpy.int64),
                numpy.array(positions, numpy.int64),
                numpy.stack([_extended(masks, at, branch, longest) for at, branch in chosen]),
                [at for at, _ in chosen] if masks else range(len(chosen)),
                wanted,
            )
        )
        return targets, logits[place] if len(place) != len(wanted) else logits


def roots(plan: ScoringPlan, longest: int) -> list[Branch]:
    """The trie of a plan; what is longer than `longest` tokens becomes a chain of branches."""
    found: list[Branch] = []
    ends: list[Branch] = []
    for segment in plan.segments:
        chain = list(_pieces(segment, longest))
        for upper, lower in pairwise(chain):
            upper.children.append(lower)
        (found if segment.parent is None else ends[segment.parent].children).append(chain[0])
        ends.append(chain[-1])
    return found


def scored(targets: Sequence[Target], logits: Logits) -> Iterator[tuple[Target, float, bool]]:
    """Each target with its log-probability and whether no logit of its row is larger."""
    for begin in range(0, len(targets), _ROWS_AT_ONCE):
        some = targets[begin : begin + _ROWS_AT_ONCE]
        values = logits[begin : begin + len(some)].astype(numpy.float32, copy=False)
        at = numpy.arange(len(some))
        chosen = values[at, [target.token_id for target in some]]
        top = values.max(axis=-1)
        # Differences from the top first: logit and log-sum-exp may be large and nearly equal.
        rest = numpy.log(numpy.exp(values - top[:, None]).sum(axis=-1, dtype=numpy.float64))
        logprobs = (chosen - top) - rest
        yield from zip(some, logprobs.tolist(), (chosen >= top).tolist(), strict=True)


def _pieces(segment: Segment, longest: int) -> Iterator[Branch]:
    for begin in range(0, len(segment.token_ids), longest):
        depth = segment.depth + begin
        token_ids = segment.token_ids[begin : begin + longest]
        inside = range(depth, depth + len(token_ids))
        yield Branch(depth, token_ids, [t for t in segment.targets if t.position in inside])


def _extended(masks: Sequence[_Mask], at: int, branch: Branch, longest: int) -> _Mask:
    added = (numpy.arange(longest) < len(branch.token_ids)).astype(numpy.int64)
    return numpy.concatenate((masks[at], added)) if masks else added
