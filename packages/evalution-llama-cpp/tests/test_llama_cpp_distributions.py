"""Whole rows from llama.cpp: their values, the logits that they take, and the cache they share."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from evalution_core import BaseInferenceSession, LoglikelihoodRequest, Model
from evalution_core.builtins import builtin_path
from evalution_core.requests import DistributionRequest, DistributionRows
from evalution_enginekit import TokenSpan
from evalution_llama_cpp import LlamaCpp
from evalution_llama_cpp.context import Context
from evalution_reference import Reference

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from evalution_llama_cpp.session import LlamaCppSession

TINY = Model("builtin:tiny")
BATCH, WINDOW = 64, 320
CRAMPED = LlamaCpp(device="cpu", n_threads=1, n_ctx=WINDOW, n_batch=BATCH)
Found = dict[int, NDArray[np.float32]]


@pytest.fixture(scope="module")
def cramped() -> Iterator[LlamaCppSession]:
    with CRAMPED.build(TINY) as session:
        session.check()
        yield session


@pytest.fixture(scope="module")
def exact() -> Iterator[BaseInferenceSession]:
    with Reference(dtype="float64").build(TINY) as session:
        yield session


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches of the tiny model's rows to a block, and a rest that isn't used."""
    monkeypatch.setattr("evalution_enginekit.distributions._VALUES", 576 * (2 * BATCH + 5))


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Filled with the tokens and the wanted rows of each decode."""
    seen: list[tuple[int, int]] = []
    decode = Context.decode

    def note(context: Context) -> NDArray[np.float32]:
        seen.append((context.batch.length, context.batch.outputs))
        return decode(context)

    monkeypatch.setattr(Context, "decode", note)
    return seen


def make_requests() -> list[DistributionRequest]:
    """Short and long texts, several of which begin alike or are the same."""
    chance = random.Random(3)
    head = [chance.randrange(576) for _ in range(60)]
    tails = [[chance.randrange(576) for _ in range(length)] for length in (1, 2, 7, 40, 200)]
    requests = [DistributionRequest([*head, *tail], start=60) for tail in tails]
    requests += [DistributionRequest([*head, *tails[4]]), DistributionRequest(tails[1])]
    return requests + [DistributionRequest([*head, *tails[2]], start=66)] * 2


def read(session: BaseInferenceSession, requests: Sequence[DistributionRequest]) -> Found:
    found: dict[int, list[NDArray[np.float32]]] = {}
    for key, answer in session.distributions(enumerate(requests)):
        assert isinstance(answer, DistributionRows)
        found.setdefault(key, []).append(np.array(answer.rows))
    return {key: np.concatenate(blocks) for key, blocks in found.items()}


def is_unused(session: LlamaCppSession) -> bool:
    session.gc()
    return session.budget.is_unused


def test_rows_are_those_of_float64(cramped: LlamaCppSession, exact: BaseInferenceSession) -> None:
    requests = make_requests()
    found, expected = read(cramped, requests), read(exact, requests)
    assert list(found) == list(expected)
    for key, rows in found.items():
        np.testing.assert_allclose(rows, expected[key], atol=1e-5, rtol=0)
        np.testing.assert_allclose(np.exp(rows.astype(float)).sum(axis=-1), 1, atol=1e-6)
    assert is_unused(cramped)


def test_rows_of_a_quantised_file_have_its_scores() -> None:
    model = Model(str(builtin_path("builtin:tiny", "gguf-q8_0")))
    with LlamaCpp(device="cpu", n_threads=1).build(model) as session:
        for request in make_requests():
            before = list(request.input_ids[: request.start])
            after = list(request.input_ids[request.start :])
            # Each in an empty cache: the activations are rounded too, and other batches flip some.
            session.gc()
            rows = read(session, [request])[0]
            session.gc()
            (score,) = session.loglikelihood(
                [LoglikelihoodRequest(context_input_ids=before, continuation_input_ids=after)]
            )
            read_off = rows[np.arange(len(after)), after]
            assert read_off.tolist() == pytest.approx(score.token_logprobs, abs=1e-5)


def test_logits_are_computed_at_wanted_positions_alone(
    cramped: LlamaCppSession, decodes: list[tuple[int, int]]
) -> None:
    cramped.gc()
    read(cramped, [DistributionRequest(list(range(WINDOW)), start=200)])
    assert sum(wanted for _, wanted in decodes) == 120
    assert all(wanted <= length <= BATCH for length, wanted in decodes)


def test_blocks_of_a_long_text_run_no_token_twice(
    cramped: LlamaCppSession, decodes: list[tuple[int, int]]
) -> None:
    cramped.gc()
    blocks = cramped.distributions([(0, DistributionRequest(list(range(WINDOW)), start=3))])
    lengths = [len(answer.rows) for _, answer in blocks if isinstance(answer, DistributionRows)]
    # Blocks end at whole batches; the first two tokens have no row.
    assert lengths == [2 * BATCH - 2, 2 * BATCH, BATCH - 1]
    assert [length for length, _ in decodes] == [BATCH] * 4 + [BATCH - 1]


def test_texts_one_after_the_other_share_their_prefix(
    cramped: LlamaCppSession, decodes: list[tuple[int, int]]
) -> None:
    cramped.gc()
    head = list(range(100))
    for last in (200, 201, 202):
        read(cramped, [DistributionRequest([*head, last, 5], start=101)])
    assert sum(length for length, _ in decodes) == 101 + 1 + 1


def test_short_texts_run_side_by_side(
    cramped: LlamaCppSession, decodes: list[tuple[int, int]]
) -> None:
    cramped.gc()
    read(cramped, [DistributionRequest([first, 5, 6, 7]) for first in range(8)])
    assert decodes == [(24, 24)]


def test_scores_come_between_two_blocks(
    cramped: LlamaCppSession, exact: BaseInferenceSession
) -> None:
    ids = list(range(WINDOW))
    pair = LoglikelihoodRequest(context_input_ids=ids[:1], continuation_input_ids=ids[:0:-1])
    expected = read(exact, [DistributionRequest(ids)])[0]
    (score,) = exact.loglikelihood([pair])
    blocks = 0
    for _, answer in cramped.distributions([(0, DistributionRequest(ids))]):
        assert isinstance(answer, DistributionRows)
        rows = np.array(answer.rows)
        wanted = expected[answer.first : answer.first + len(rows)]
        np.testing.assert_allclose(rows, wanted, atol=1e-5, rtol=0)
        # It takes the whole cache.
        (found,) = cramped.loglikelihood([pair])
        assert found.token_logprobs == pytest.approx(score.token_logprobs, abs=1e-5)
        blocks += 1
    assert blocks == 3
    assert is_unused(cramped)


def test_rows_wait_for_scores_that_hold_the_cache(cramped: LlamaCppSession) -> None:
    cramped.gc()
    scorer = cramped._scorer
    scores = scorer.score([TokenSpan(list(range(WINDOW, 0, -1)), 1)])
    assert next(scores) == []
    rows = scorer.compute_rows([TokenSpan(list(range(WINDOW)), 1)])
    assert [len(next(rows)) for _ in range(3)] == [0] * 3
    assert sum(map(len, scores)) == 1
    assert sum(map(len, rows)) == WINDOW - 1
    assert is_unused(cramped)


def test_closing_early_frees_the_cache(cramped: LlamaCppSession) -> None:
    rows = cramped._scorer.compute_rows([TokenSpan(list(range(WINDOW)), 1)])
    next(rows)
    assert not is_unused(cramped)
    rows.close()  # type: ignore[attr-defined]
    assert is_unused(cramped)
