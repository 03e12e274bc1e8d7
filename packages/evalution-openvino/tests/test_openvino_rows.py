"""Rows of log-probabilities by a stateful model: the oracle's, in any order and size of runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import pytest

from evalution_core import LoglikelihoodRequest, Model
from evalution_core.requests import DistributionRequest, DistributionRows
from evalution_enginekit import TokenSpan, distributions
from evalution_reference import Reference

pytest.importorskip("optimum.intel", reason="optimum-intel is not installed")

from evalution_openvino.score import PrefixTreeScorer

VOCAB = 97


def _draw_spans(seed: int) -> list[TokenSpan]:
    """Spans in any order: equal ones, shared beginnings, scored whole or at the end."""
    chance = random.Random(seed)

    def ids(least: int, most: int) -> list[int]:
        return [chance.randrange(3, VOCAB) for _ in range(chance.randint(least, most))]

    heads = [[1], [1, *ids(30, 40)], [1, *ids(5, 9)]]
    sequences = [[*chance.choice(heads), *ids(1, 30)] for _ in range(6)]
    spans = [TokenSpan(found, chance.choice([1, len(found) - 1])) for found in sequences]
    long, other = [1, *ids(40, 40)], [1, *ids(40, 40)]
    return [*spans, *(TokenSpan(found, 36) for found in (long, other, long))]


def _make_scorer(session: Any, pass_tokens: int) -> PrefixTreeScorer:
    own = session._scorer
    return PrefixTreeScorer(own._request, own._forms, pass_tokens=pass_tokens, state_tokens=4096)


def _compute(scorer: PrefixTreeScorer, spans: Sequence[TokenSpan]) -> Any:
    return numpy.concatenate(list(scorer.compute_rows(spans)))


def _read_rows(session: Any, requests: Sequence[DistributionRequest]) -> list[Any]:
    found: list[list[Any]] = [[] for _ in requests]
    for key, answer in session.distributions(enumerate(requests)):
        assert isinstance(answer, DistributionRows), answer
        found[key].append(numpy.asarray(answer.rows))
    return [numpy.concatenate(blocks).astype(numpy.float64) for blocks in found]


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_any_size_of_run_gives_the_rows_of_single_spans(
    random_session: Callable[..., Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributions, "_VALUES", 20 * VOCAB)
    session, spans = random_session(kind), _draw_spans(3)
    single = _make_scorer(session, 4096)
    right = numpy.concatenate([_compute(single, [span]) for span in spans])
    scores = [score for span in spans for (score,) in filter(None, single.score([span]))]
    targets = [token for span in spans for token in span.token_ids[span.start :]]
    expected = [value for score in scores for value in score.logprobs]
    assert right[range(len(targets)), targets] == pytest.approx(expected, abs=1e-5)
    for tokens in (1, 24, 512):
        scorer = _make_scorer(session, tokens)
        for _ in range(2):
            blocks = list(scorer.compute_rows(spans))
            assert max(map(len, blocks)) <= 20
            numpy.testing.assert_allclose(numpy.concatenate(blocks), right, atol=2e-4)


def test_calls_that_take_turns_do_not_disturb_each_other(
    random_session: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributions, "_VALUES", 20 * VOCAB)
    session = random_session("llama")
    scorer = _make_scorer(session, 24)
    calls = [_draw_spans(seed)[:5] for seed in (4, 5)]
    right = [_compute(scorer, spans) for spans in calls]
    open_calls: list[Iterator[Any]] = [scorer.compute_rows(spans) for spans in calls]
    found: list[list[Any]] = [[], []]
    for at in range(400):
        if (block := next(open_calls[at % 2], None)) is not None:
            found[at % 2].append(block)
        if at % 9 == 0:
            scorer.forget()
    for blocks, expected in zip(found, right, strict=True):
        numpy.testing.assert_allclose(numpy.concatenate(blocks), expected, atol=2e-4)


def test_rows_are_the_oracles(tiny: Any) -> None:
    ids = tiny.tokenizer.encode("The cat sees the red house. " * 9)
    requests = [DistributionRequest(ids), DistributionRequest(ids[:9], start=5)]
    found = _read_rows(tiny, requests)
    with Reference(dtype="float64").build(Model("builtin:tiny")) as oracle:
        right = _read_rows(oracle, requests)
    for rows, expected in zip(found, right, strict=True):
        apart = expected - rows
        divergence = (numpy.exp(expected) * (apart + numpy.expm1(-apart))).sum(axis=-1)
        assert divergence.mean() <= 1e-9


def test_most_likely_tokens_come_with_scores(tiny: Any) -> None:
    pair = ("The cat sees", " the red house")
    (plain,) = tiny.loglikelihood([LoglikelihoodRequest(*pair)])
    (found,) = tiny.loglikelihood([LoglikelihoodRequest(*pair, top_logprobs=3)])
    assert found.token_logprobs == pytest.approx(plain.token_logprobs, abs=1e-5)
    assert [len(step) for step in found.top_logprobs] == [3] * len(plain.token_logprobs)
