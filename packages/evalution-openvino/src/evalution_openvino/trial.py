"""A few tokens that tell which forms of a run give a model's own logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from evalution_core import ConfigurationError
from evalution_openvino.prefix_walk import Fitness
from evalution_openvino.stateful import Logits, Pass, StatefulRequest

_TOLERANCES = {"float32": 1e-3}
_LOOSEST = 1e-1
"""By how much a row of logits may differ in the mean, as a share of the row's own spread."""
_HEAD, _SHORT = 6, 3


class Trial:
    """Two short sequences with a common beginning, and their logits from a run of their own.

    Raises:
        ConfigurationError: the model isn't causal.
    """

    def __init__(self, request: StatefulRequest, vocab_size: int, dtype: str | None):
        ids = [(7919 * at + 13) % vocab_size for at in range(13)]
        self._request = request
        self._tolerance = _TOLERANCES.get(str(dtype), _LOOSEST)
        self._head, self._left, self._right = ids[:_HEAD], ids[_HEAD:10], ids[10:]
        self._longer, self._shorter = self._head + self._left, self._head + self._right
        self._with_longer = self._alone(self._longer)
        self._with_shorter = self._alone(self._shorter)
        if not self._alike(self._with_longer[:_HEAD], self._with_shorter[:_HEAD]):
            raise ConfigurationError(
                "the model's logits at a token depend on the tokens after it; this engine runs "
                "causal models alone"
            )

    def fitness(self) -> Fitness:
        shares = self._request.continues and self._shares()
        return Fitness(shares, shares and self._cuts(), self._pads_right())

    def pads_left(self) -> bool:
        """Whether a shorter prompt behind padding gets what it gets alone, as `generate` needs."""
        gap = len(self._longer) - len(self._shorter)
        mask = [[1] * len(self._longer), [0] * gap + [1] * len(self._shorter)]
        found = self._fresh(
            [self._longer, [0] * gap + self._shorter],
            mask,
            [range(len(self._longer)), [*[1] * gap, *range(len(self._shorter))]],
        )
        return self._both_alike(found[: len(self._longer)], found[len(self._longer) + gap :])

    def _pads_right(self) -> bool:
        gap = len(self._longer) - len(self._shorter)
        mask = [[1] * len(self._longer), [1] * len(self._shorter) + [0] * gap]
        positions = [range(len(self._longer))] * 2
        found = self._fresh([self._longer, self._shorter + [0] * gap], mask, positions)
        longer, rest = found[: len(self._longer)], found[len(self._longer) :]
        return self._both_alike(longer, rest[: len(self._shorter)])

    def _shares(self) -> bool:
        """The beginning in two runs, two ends behind it, and one token more behind the padding."""
        self._fresh([self._head[:3]], [[1] * 3], [range(3)])
        self._run([self._head[3:]], [[1] * _HEAD], [range(3, _HEAD)], [0])
        ends = [self._left[:2], [self._right[0], 0]]
        mask = [[1] * 8, [1] * 7 + [0]]
        both = self._run(ends, mask, [range(_HEAD, 8)] * 2, [0, 0])
        last = [self._right[1:], self._right[1:], self._left[2:]]
        mask = [[*mask[1], 1, 1], [*mask[1], 1, 1], [*mask[0], 1, 1]]
        rest = self._run(last, mask, [range(7, 9), range(7, 9), range(8, 10)], [1, 1, 0])
        longer = numpy.concatenate((both[:2], rest[4:]))
        shorter = numpy.concatenate((both[2:3], rest[:2]))
        return self._alike(self._with_longer[_HEAD:], longer) and self._alike(
            self._with_shorter[_HEAD:], shorter
        )

    def _cuts(self) -> bool:
        self._fresh([self._longer], [[1] * 10], [range(10)])
        state = self._request.save()
        if not state.is_cuttable:
            return False
        self._request.restore(state.first(_HEAD))
        found = self._run([self._right], [[1] * 9], [range(_HEAD, 9)], [0])
        return self._alike(self._with_shorter[_HEAD:], found)

    def _alone(self, token_ids: list[int]) -> Logits:
        return self._fresh([token_ids], [[1] * len(token_ids)], [range(len(token_ids))])

    def _fresh(
        self,
        token_ids: Sequence[Sequence[int]],
        mask: Sequence[Sequence[int]],
        positions: Sequence[Sequence[int]],
    ) -> Logits:
        self._request.reset()
        return self._run(token_ids, mask, positions, range(len(token_ids)))

    def _run(
        self,
        token_ids: Sequence[Sequence[int]],
        mask: Sequence[Sequence[int]],
        positions: Sequence[Sequence[int]],
        origins: Sequence[int],
    ) -> Logits:
        fed = numpy.array(token_ids, numpy.int64)
        every = numpy.arange(fed.size)
        given = Pass(
            fed, numpy.array(positions, numpy.int64), numpy.array(mask, numpy.int64), origins, every
        )
        return self._request.run(given).copy()

    def _both_alike(self, longer: Logits, shorter: Logits) -> bool:
        return self._alike(self._with_longer, longer) and self._alike(self._with_shorter, shorter)

    def _alike(self, expected: Logits, found: Logits) -> bool:
        """Whether each row of `found` is the same row, up to what another order of sums does."""
        spread = expected.std(axis=-1).clip(min=1e-6)
        apart = numpy.sqrt(numpy.square(found - expected).mean(axis=-1))
        return bool(numpy.isfinite(found).all() and (apart <= self._tolerance * spread).all())
