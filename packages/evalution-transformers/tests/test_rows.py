"""Rows of log-probabilities are those of the plain forward pass, whichever passes compute them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from evalution_core import LoglikelihoodRequest, Model, RollingLoglikelihoodRequest
from evalution_core.requests import DistributionRequest, DistributionRows
from evalution_enginekit import TokenSpan, distributions
from evalution_reference import Reference
from evalution_transformers import Transformers, TransformersCompat
from evalution_transformers.probe import probe_architecture
from evalution_transformers.scoring_passes import Scorer
from evalution_transformers.session import make_scorer

VOCAB, WINDOW = 97, 128
TINY = Model("builtin:tiny")
TEXTS = ["The cat sees the red house. " * 9, "One is 8 + 1 = 9.", "The cat sees the dog"]
Rows = NDArray[np.floating[Any]]


def draw_spans(seed: int) -> list[TokenSpan]:
    """Spans in any order: equal ones, shared beginnings, scored whole or at the end."""
    chance = random.Random(seed)

    def ids(least: int, most: int) -> list[int]:
        return [chance.randrange(3, VOCAB) for _ in range(chance.randint(least, most))]

    heads = [[1], [1, *ids(30, 40)], [1, *ids(5, 9)]]
    sequences = [[*chance.choice(heads), *ids(1, 30)] for _ in range(9)]
    spans = [TokenSpan(found, chance.choice([1, len(found) - 1])) for found in sequences]
    long, other = [1, *ids(40, 40)], [1, *ids(40, 40)]
    again = [TokenSpan(found, 36) for found in (long, other, long)]
    return [*spans, *again, TokenSpan([1, *ids(WINDOW, WINDOW)], 1)]


def compute_plainly(model: Any, span: TokenSpan) -> Rows:
    with torch.no_grad():
        logits = model(torch.tensor([list(span.fed)])).logits[0, span.start - 1 :]
    return logits.double().log_softmax(-1).numpy()


def collect(scorer: Scorer, spans: Sequence[TokenSpan]) -> Rows:
    return np.concatenate(list(scorer.compute_rows(spans)))


def read_rows(session: Any, requests: Sequence[DistributionRequest]) -> list[Rows]:
    """The rows of each request, whose blocks come one after the other."""
    found: list[list[Rows]] = [[] for _ in requests]
    for key, answer in session.distributions(enumerate(requests)):
        assert isinstance(answer, DistributionRows), answer
        assert answer.first == sum(map(len, found[key]))
        found[key].append(np.asarray(answer.rows))
    return [np.concatenate(blocks).astype(np.float64) for blocks in found]


def measure_divergence(left: Rows, right: Rows) -> float:
    """Mean KL divergence in nats, as sum of p (d + expm1(-d)) with d = ln p - ln q."""
    apart = left - right
    return float((np.exp(left) * (apart + np.expm1(-apart))).sum(axis=-1).mean())


@pytest.fixture(scope="module")
def tiny() -> Iterator[Any]:
    with Transformers(dtype="float32", device="cpu").build(TINY) as session:
        yield session


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral", "gemma2", "bloom", "mamba"])
def test_any_size_of_pass_gives_the_rows_of_the_plain_forward(
    random_model: Callable[..., Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributions, "_VALUES", 20 * VOCAB)
    model = random_model(kind, torch.float32, "eager" if kind == "gemma2" else "sdpa")
    spans = draw_spans(3)
    right = np.concatenate([compute_plainly(model, span) for span in spans])
    for tokens in (1, 30, 4096):
        scorer = make_scorer(model, probe_architecture(model, WINDOW), pass_tokens=tokens)
        for _ in range(2):
            blocks = list(scorer.compute_rows(spans))
            assert max(map(len, blocks)) <= 20
            np.testing.assert_allclose(np.concatenate(blocks), right, atol=2e-4)


def test_rows_are_projected_by_the_block(
    random_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributions, "_VALUES", 16 * VOCAB)
    model = random_model("llama")
    scorer = make_scorer(model, probe_architecture(model, WINDOW))
    sizes: list[int] = []

    def note(_: Any, inputs: tuple[torch.Tensor]) -> None:
        sizes.append(inputs[0].numel() // inputs[0].shape[-1])

    hook = model.get_output_embeddings().register_forward_pre_hook(note)
    try:
        collect(scorer, [TokenSpan([1, *range(3, 90)], 1)])
    finally:
        hook.remove()
    assert sizes == [16] * 5 + [7]


def test_calls_that_take_turns_do_not_disturb_each_other(random_model: Callable[..., Any]) -> None:
    model = random_model("llama")
    scorer = make_scorer(model, probe_architecture(model, WINDOW), pass_tokens=24)
    calls = [draw_spans(seed) for seed in (4, 5)]
    right = [np.concatenate([compute_plainly(model, s) for s in spans]) for spans in calls]
    open_calls = [scorer.compute_rows(spans) for spans in calls]
    found: list[list[Rows]] = [[], []]
    scores = scorer.score(calls[0])
    scored = 0
    for at in range(1000):
        if (block := next(open_calls[at % 2], None)) is not None:
            found[at % 2].append(block)
        scored += len(next(scores, []))
        if at % 7 == 0:
            scorer.forget()
    assert scored == len(calls[0])
    for blocks, expected in zip(found, right, strict=True):
        np.testing.assert_allclose(np.concatenate(blocks), expected, atol=2e-4)


def test_memory_that_runs_out_repeats_no_row(random_model: Callable[..., Any]) -> None:
    model = random_model("llama")
    spans = draw_spans(6)[-4:]
    right = np.concatenate([compute_plainly(model, span) for span in spans])
    for fails_at in (1, 3, 4):
        scorer = make_scorer(model, probe_architecture(model, WINDOW), pass_tokens=64)
        passes = 0

        def fail(*_: Any, at: int = fails_at) -> None:
            nonlocal passes
            passes += 1
            if passes == at:
                raise torch.OutOfMemoryError

        hook = model.model.layers[1].register_forward_pre_hook(fail)
        try:
            np.testing.assert_allclose(collect(scorer, spans), right, atol=2e-4)
        finally:
            hook.remove()
        assert passes > fails_at


def test_consecutive_requests_share_their_prefix(random_model: Callable[..., Any]) -> None:
    model = random_model("llama")
    head = [1, *range(3, 90)]
    spans = [TokenSpan([*head, at, at + 1], len(head)) for at in range(3, 19)]
    scorer = make_scorer(model, probe_architecture(model, WINDOW), pass_tokens=48)
    tokens = 0

    def count(_: Any, __: Any, inputs: dict[str, Any]) -> None:
        nonlocal tokens
        tokens += inputs["input_ids"].numel()

    hook = model.base_model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        for one, other in pairwise(spans):
            collect(scorer, [one, other])
    finally:
        hook.remove()
    assert tokens <= len(head) + 4 * len(spans)


@pytest.mark.parametrize("engine", [Transformers, TransformersCompat])
def test_rows_are_the_oracles_and_hold_the_scores(engine: type[TransformersCompat]) -> None:
    with engine(dtype="float32", device="cpu").build(TINY) as session:
        rolled = session.loglikelihood_rolling(
            [RollingLoglikelihoodRequest(text) for text in TEXTS]
        )
        scored = [(list(o.token_ids or ()), list(o.token_logprobs or ())) for o in rolled]
        ids = [[*session.tokenizer.leading_ids[:1], *token_ids] for token_ids, _ in scored]
        requests = [DistributionRequest(found) for found in ids]
        found = read_rows(session, requests)
    for rows, (token_ids, logprobs), one in zip(found, scored, ids, strict=True):
        np.testing.assert_allclose(np.exp(rows).sum(axis=-1), 1, atol=1e-5)
        offset = len(one) - len(token_ids)
        chosen = rows[np.arange(len(one) - 1), one[1:]][1 - offset :]
        assert chosen == pytest.approx(logprobs[1 - offset :], abs=1e-5)
    with Reference(dtype="float64").build(TINY) as oracle:
        right = read_rows(oracle, requests)
    for rows, expected in zip(found, right, strict=True):
        assert measure_divergence(expected, rows) <= 1e-9


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_rows_of_any_dtype_are_normalised(dtype: Any) -> None:
    with Transformers(dtype=dtype, device="cpu").build(TINY) as session:
        ids = session.tokenizer.encode(TEXTS[0])
        (rows,) = read_rows(session, [DistributionRequest(ids)])
    assert np.abs(np.logaddexp.reduce(rows, axis=-1)).max() < 1e-5


def test_most_likely_tokens_come_with_scores(tiny: Any) -> None:
    request = LoglikelihoodRequest("The cat sees", " the red house", top_logprobs=3)
    (plain,) = tiny.loglikelihood([LoglikelihoodRequest("The cat sees", " the red house")])
    (found,) = tiny.loglikelihood([request])
    assert found.token_logprobs == pytest.approx(plain.token_logprobs, abs=1e-5)
    assert found.is_greedy == plain.is_greedy
    assert found.top_logprobs is not None
    assert [len(step) for step in found.top_logprobs] == [3] * len(found.token_logprobs)
