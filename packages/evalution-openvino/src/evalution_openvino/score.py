"""Scoring down the tree of shared prefixes, level by level, as rows of a stateful model.

The sequences of a run continue those of the run before it, and any number may continue the same
one: the input `beam_idx`, made for beam search, says which. So a prefix is run once, however many
share it. Where the children of one level don't fit into a run, the state is restored for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy
from numpy.typing import NDArray

from evalution_core.encoding import shared_prefix
from evalution_enginekit import ScoringPlan, Segment, Target, TokenSpan, plan_scoring
from evalution_enginekit.distributions import Rows, count_block_rows, log_softmax_rows
from evalution_enginekit.sampling import token_logprobs
from evalution_openvino.stateful import Logits, Pass, RunForms, State, StatefulRequest
from evalution_transformers.scoring_passes import Scorer, group_by_tokens

_LEAST_KEPT = 8
"""Shared tokens from which continuing behind a saved beginning beats running it again."""
_WORTHWHILE = 64
"""Tokens from which a run costs by its tokens, rather than by reading all weights once."""
_LEAST_FILLED = 0.8
"""The share of the longest node that another has to have, to be run with it then."""

_Mask = NDArray[numpy.int64]
_Passed = tuple[list[Target], "RunLogits"]


@dataclass(slots=True)
class Node:
    """Tokens behind `depth` others, and the targets that are read there."""

    depth: int
    token_ids: list[int]
    targets: Sequence[Target]
    children: list[Node] = field(default_factory=list["Node"])


class RunLogits:
    """Logits of a run's targets, valid until the next run.

    Args:
        logits: [rows, vocabulary].
        at: target i reads row `at[i]` of them.
    """

    def __init__(self, logits: Logits, at: NDArray[numpy.int64]):
        self._logits = logits
        self._at = at
        self.block_rows = count_block_rows(logits.shape[-1])

    def begin_scores(self, token_ids: Sequence[int]) -> Callable[[], list[tuple[float, bool]]]:
        """Score the targets at once: the log-probability and greediness of each."""
        found = token_logprobs(self._logits, numpy.array(token_ids, numpy.int64), self._at)
        return lambda: list(zip(*found, strict=True))

    def read(self, targets: Sequence[int]) -> Rows:
        """Return the log-probabilities of the whole vocabulary at these targets."""
        return log_softmax_rows(self._logits[self._at[targets]])

    def keep(self, targets: Sequence[int]) -> RunLogits:
        """Return a copy of those of these targets."""
        return RunLogits(self._logits[self._at[targets]], numpy.arange(len(targets)))


class PrefixTreeScorer(Scorer):
    """Scores spans with every shared prefix run once, and keeps the last prefix for the next call.

    Args:
        request: the model; nothing else may run on it.
        forms: the runs that it allows.
        pass_tokens: tokens of one run, padding included, or fewer once memory ran out.
        state_tokens: tokens whose keys and values may be held at once.
    """

    _out_of_memory = MemoryError

    def __init__(
        self, request: StatefulRequest, forms: RunForms, *, pass_tokens: int, state_tokens: int
    ):
        super().__init__(pass_tokens)
        self._request = request
        self._forms = forms
        self._state_tokens = state_tokens
        self._prefix: tuple[list[int], State] | None = None

    def forget(self) -> None:
        super().forget()
        self._prefix = None
        self._request.reset()

    def _halve(self) -> None:
        super()._halve()
        self._state_tokens = max(1, self._state_tokens // 2)

    def _passes(self, spans: Sequence[TokenSpan]) -> Iterator[_Passed]:
        self._request.reset()
        if not self._forms.shares:
            whole = [
                (0, Node(0, list(token_ids), targets))
                for token_ids, targets in group_by_tokens(spans).items()
            ]
            yield from self._run_below(whole, [])
            return
        nodes = make_tree(plan_scoring(spans), self._pass_tokens)
        path, masks = self._restore_prefix(nodes)
        while len(nodes) == 1:
            yield self._run([(0, nodes[0])], masks)
            path += nodes[0].token_ids
            masks = [numpy.ones(self._request.columns, numpy.int64)]
            nodes = nodes[0].children
        state = None
        if nodes and len(path) >= _LEAST_KEPT:
            state = self._request.save()
            self._prefix = (path, state)
        yield from self._run_below([(0, node) for node in nodes], masks, state)

    def _restore_prefix(self, nodes: Sequence[Node]) -> tuple[list[int], list[_Mask]]:
        """Restore the saved prefix as far as the sole root begins with it, and cut it off there."""
        if self._prefix is None or len(nodes) != 1:
            return [], []
        token_ids, state = self._prefix
        root = nodes[0]
        free = min((t.position for t in root.targets), default=len(root.token_ids) - 1)
        shared = shared_prefix(token_ids, root.token_ids[:free])
        if shared < _LEAST_KEPT or not (self._forms.cuts or shared == len(token_ids)):
            return [], []
        self._request.restore(state.first(shared))
        path, root.token_ids = root.token_ids[:shared], root.token_ids[shared:]
        root.depth += shared
        return path, [numpy.ones(shared, numpy.int64)]

    def _groups(self, lengths: Sequence[int], columns: int) -> Iterator[list[int]]:
        """Yield groups of nodes to run together behind as many columns, longest first.

        A run that is large enough isn't filled up with nodes that would be mostly padding.
        """
        most = max(1, self._state_tokens // (columns + max(lengths)))
        group: list[int] = []
        for at in sorted(range(len(lengths)), key=lambda at: -lengths[at]):
            longest = lengths[group[0]] if group else lengths[at]
            full = len(group) >= most or longest * (len(group) + 1) > self._pass_tokens
            worthwhile = longest * len(group) >= _WORTHWHILE or not self._forms.pads
            least = _LEAST_FILLED if self._forms.pads else 1
            if group and (full or (worthwhile and lengths[at] < least * longest)):
                yield group
                group = []
            group.append(at)
        if group:
            yield group

    def _run_below(
        self, nodes: list[tuple[int, Node]], masks: list[_Mask], state: State | None = None
    ) -> Iterator[_Passed]:
        """Run nodes and all below them; each continues a sequence that the model holds.

        `masks` are those of the sequences; `state` is a copy of the model's state, if there is one.
        """
        if not nodes:
            return
        lengths = [len(node.token_ids) for _, node in nodes]
        groups = list(self._groups(lengths, self._request.columns))
        if state is None and masks and len(groups) > 1:
            state = self._request.save()
        for number, group in enumerate(groups):
            if number and state is not None:
                self._request.restore(state)
            elif number:
                self._request.reset()
            chosen = [nodes[at] for at in group]
            found = self._run(chosen, masks)
            longest = max(len(node.token_ids) for _, node in chosen)
            extended = [_extend(masks, at, node, longest) for at, node in chosen]
            yield found
            below = [(at, child) for at, (_, b) in enumerate(chosen) for child in b.children]
            yield from self._run_below(below, extended)

    def _run(self, chosen: Sequence[tuple[int, Node]], masks: Sequence[_Mask]) -> _Passed:
        """Run nodes side by side, the shorter ones padded on the right."""
        longest = max(len(node.token_ids) for _, node in chosen)
        token_ids = [
            [*node.token_ids, *node.token_ids[-1:] * (longest - len(node.token_ids))]
            for _, node in chosen
        ]
        positions = [range(node.depth, node.depth + longest) for _, node in chosen]
        targets = [target for _, node in chosen for target in node.targets]
        rows = [
            at * longest + target.position - node.depth
            for at, (_, node) in enumerate(chosen)
            for target in node.targets
        ]
        wanted, place = numpy.unique(numpy.array(rows, numpy.int64), return_inverse=True)
        logits = self._request.run(
            Pass(
                numpy.array(token_ids, numpy.int64),
                numpy.array(positions, numpy.int64),
                numpy.stack([_extend(masks, at, node, longest) for at, node in chosen]),
                [at for at, _ in chosen] if masks else range(len(chosen)),
                wanted,
            )
        )
        return targets, RunLogits(logits, place)


def make_tree(plan: ScoringPlan, longest: int) -> list[Node]:
    """Return the roots of a plan's tree; segments longer than `longest` become chains of nodes."""
    found: list[Node] = []
    ends: list[Node] = []
    for segment in plan.segments:
        chain = list(_cut(segment, longest))
        for upper, lower in pairwise(chain):
            upper.children.append(lower)
        (found if segment.parent is None else ends[segment.parent].children).append(chain[0])
        ends.append(chain[-1])
    return found


def _cut(segment: Segment, longest: int) -> Iterator[Node]:
    for begin in range(0, len(segment.token_ids), longest):
        depth = segment.depth + begin
        token_ids = segment.token_ids[begin : begin + longest]
        inside = range(depth, depth + len(token_ids))
        yield Node(depth, token_ids, [t for t in segment.targets if t.position in inside])


def _extend(masks: Sequence[_Mask], at: int, node: Node, longest: int) -> _Mask:
    added = (numpy.arange(longest) < len(node.token_ids)).astype(numpy.int64)
    return numpy.concatenate((masks[at], added)) if masks else added
