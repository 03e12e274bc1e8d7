"""Packed tokens: each is run once, at its position, and sees its own sequence and nothing else."""

# tinygrad doesn't mark what it exports.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tinygrad", reason="tinygrad is not installed")

from tinygrad import Tensor

from evalution_enginekit import TokenSpan, plan_scoring
from evalution_tinygrad.device import open_device
from evalution_tinygrad.kv_cache import KVCache, Path, Prefixes
from evalution_tinygrad.model import Packing, Rotary
from evalution_tinygrad.options import TinygradOptions
from evalution_tinygrad.score import PlannedRuns


class _Recorder:
    """Stands in for the forward pass: a row's hidden state is the tokens that it saw, in order."""

    def __init__(self) -> None:
        self.cache = KVCache(lambda _: [])
        self._held: dict[int, tuple[int, int]] = {}

    def run(self, token_ids: Any, positions: Any, visible: Any, begin: int) -> list[list[int]]:
        new = zip(token_ids.tolist(), positions.tolist(), strict=True)
        self._held |= dict(enumerate(new, start=begin))
        seen = [[self._held[slot] for slot in np.flatnonzero(row).tolist()] for row in visible]
        for row in seen:
            row.sort(key=lambda held: held[1])
            assert len({position for _, position in row}) == len(row)
        return [[token_id for token_id, _ in row] for row in seen]


_ids = st.lists(st.integers(0, 2), min_size=2, max_size=40)


@given(
    calls=st.lists(st.lists(_ids, min_size=1, max_size=8), min_size=1, max_size=3),
    starts=st.integers(1, 40),
    widths=st.sampled_from([(1,), (4,), (2, 8), (4, 16, 64)]),
)
def test_each_wanted_row_attends_to_its_own_prefix(
    calls: list[list[list[int]]], starts: int, widths: tuple[int, ...]
) -> None:
    recorder: Any = _Recorder()
    packing, prefixes = Packing(recorder, widths), Prefixes(recorder.cache)
    for sequences in calls:
        spans = [TokenSpan(ids, min(starts, len(ids) - 1)) for ids in sequences]
        plan = plan_scoring(spans)
        before = packing.tokens_run
        rows: set[tuple[int, int]] = set()
        runs = PlannedRuns(plan, prefixes)
        for each in packing.passes(runs, runs.total):
            for wanted in each.wanted:
                target = wanted.target
                ids = spans[target.span].token_ids
                assert each.hidden[wanted.row] == ids[: target.position + 1]
                assert target.token_id == ids[target.position + 1]
                rows.add((target.span, target.slot))
        assert rows == {
            (at, slot)
            for at, span in enumerate(spans)
            for slot in range(len(span.token_ids) - span.start)
        }
        assert packing.tokens_run - before == runs.total <= plan.unique_tokens
        token_ids, path = runs.roots[max(runs.roots)]
        prefixes.remember(token_ids, path)


@given(total=st.integers(1, 600))
def test_a_pass_is_half_full_or_the_narrowest(total: int) -> None:
    recorder: Any = _Recorder()
    packing = Packing(recorder, (16, 64, 256))
    width = packing.width(total)
    assert width == 16 or 2 * total > width
    assert width == 256 or 2 * total <= 4 * width


@pytest.mark.parametrize(
    ("rows", "tokens", "widths"),
    [
        (16, 256, (16, 64, 256)),
        (1, 256, (1, 4, 16, 64, 256)),
        (8, 8, (8,)),
        (32, 16, (32,)),
        (16, 100, (16, 25, 100)),
    ],
)
def test_widths_range_from_one_token_a_row_to_a_full_pass(
    rows: int, tokens: int, widths: Sequence[int]
) -> None:
    assert TinygradOptions(batch_size=rows, pass_tokens=tokens).widths == widths


def test_slots_are_free_when_no_path_holds_them() -> None:
    cache = KVCache(lambda _: [])
    first, second = cache.new_path(), cache.new_path()
    first.extend(cache.find_room(8), 8)
    second.extend(cache.find_room(8), 8)
    assert (first.slots.tolist(), second.slots.tolist()) == ([*range(8)], [*range(8, 16)])
    fork = second.fork(3)
    del first
    assert cache.held == 8
    del second
    assert cache.held == 3
    assert fork.slots.tolist() == [8, 9, 10]
    assert cache.find_room(8) == 11


def test_a_device_without_room_leaves_the_cache_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KVCache(lambda tokens: [(2, 1, tokens, 4)])
    with open_device("cpu", None, None).activate():
        cache.find_room(8)
        before = cache.capacity, [*cache.tensors]

        def fail(*_: Any, **__: Any) -> Tensor:
            raise MemoryError

        with monkeypatch.context() as full:
            full.setattr(Tensor, "realize", fail)
            with pytest.raises(MemoryError):
                cache.find_room(2 * cache.capacity)
        assert (cache.capacity, cache.tensors) == before
        path = cache.new_path()
        path.extend(cache.find_room(3000), 3000)
        assert [tensor.shape for tensor in cache.tensors] == [(2, 1, cache.capacity, 4)]


@pytest.mark.parametrize("room", [0, 1, 2, 3, 9])
def test_memory_that_runs_out_as_slots_are_moved_leaves_every_path_as_it_was(
    monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Two layers are moved one after the other, each in two steps."""
    monkeypatch.setattr("evalution_tinygrad.kv_cache._LEAST_CAPACITY", 32)
    monkeypatch.setattr("evalution_tinygrad.kv_cache._SLACK", 0)
    cache = KVCache(lambda tokens: [(2, 1, tokens, 1)] * 2)
    realize, left = Tensor.realize, [99]

    def run_out(tensor: Tensor, *others: Any, **settings: Any) -> Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError
        return realize(tensor, *others, **settings)

    def read(path: Path) -> list[Any]:
        return [tensor.numpy()[:, 0, path.slots, 0].tolist() for tensor in cache.tensors]

    with open_device("cpu", None, None).activate():
        paths = [cache.new_path() for _ in range(3)]
        for path in paths:
            path.extend(cache.find_room(8), 8)
        for tensor in cache.tensors:
            tensor.assign(Tensor.arange(2 * cache.capacity).reshape(2, 1, -1, 1).float()).realize()
        kept = [paths[0].fork(5), paths[2].fork(6), paths[2]]
        before = [read(path) for path in kept]
        del paths
        monkeypatch.setattr(Tensor, "realize", run_out)
        left[0] = room
        if room < 4:
            with pytest.raises(MemoryError):
                cache.find_room(18)
        else:
            assert cache.find_room(18) == 13
        left[0] = 99
        assert [read(path) for path in kept] == before
        kept[2].extend(cache.find_room(2), 2)
        assert read(kept[0]) == before[0]
        assert cache.find_room(16) == 15
        assert [read(path) for path in kept[:2]] == before[:2]
        assert kept[2].slots.max() == 14


def test_rotation_is_that_of_the_formula_and_of_llama_3s_factors() -> None:
    plain = Rotary(8, 10000.0).at(np.array([0, 7]))
    angles = 7 / 10000.0 ** (np.arange(0, 8, 2) / 8)
    np.testing.assert_allclose(plain[0], [1, 1, 1, 1, 0, 0, 0, 0])
    np.testing.assert_allclose(plain[1], [*np.cos(angles), *np.sin(angles)], atol=1e-7)
    scaled = Rotary(8, 10000.0, [1, 2, 4, 8]).at(np.array([7]))
    angles = angles / [1, 2, 4, 8]
    np.testing.assert_allclose(scaled[0], [*np.cos(angles), *np.sin(angles)], atol=1e-7)
