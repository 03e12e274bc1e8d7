"""Whole rows from tinygrad: their values, and the rows and tokens that are run for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("tinygrad", reason="tinygrad is not installed")

from evalution_core import BaseInferenceSession, LoglikelihoodRequest, Model
from evalution_core.builtins import builtin_path
from evalution_core.requests import DistributionRequest, DistributionRows
from evalution_reference import Reference
from evalution_tinygrad import Tinygrad
from evalution_tinygrad.model import SCORED_ROWS

TINY = Model("builtin:tiny")
_CLOSE = {"atol": 1e-5, "rtol": 0}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of the head to a block, and a rest that isn't used."""
    monkeypatch.setattr("evalution_enginekit.distributions._VALUES", 576 * (SCORED_ROWS + 5))


def _draw_requests() -> list[DistributionRequest]:
    chance = random.Random(4)
    head = [chance.randrange(576) for _ in range(40)]
    tails = [[chance.randrange(576) for _ in range(length)] for length in (1, 7, 150)]
    requests = [DistributionRequest([*head, *tail], start=38) for tail in tails]
    return [*requests, DistributionRequest(tails[1]), requests[1]]


def _read(
    session: BaseInferenceSession, requests: Sequence[DistributionRequest]
) -> list[NDArray[np.float32]]:
    found: dict[int, list[NDArray[np.float32]]] = {}
    for key, answer in session.distributions(enumerate(requests)):
        assert isinstance(answer, DistributionRows)
        found.setdefault(key, []).append(np.array(answer.rows))
    assert list(found) == list(range(len(requests)))
    return [np.concatenate(blocks) for blocks in found.values()]


@pytest.mark.parametrize("kind", ["gguf", "gguf-q8_0"])
def test_rows_are_those_of_float64_and_have_the_scores(kind: str) -> None:
    model = Model(str(builtin_path("builtin:tiny", kind)))
    requests = _draw_requests()
    pairs = [
        LoglikelihoodRequest(
            context_input_ids=list(each.input_ids[: each.start]),
            continuation_input_ids=list(each.input_ids[each.start :]),
        )
        for each in requests
    ]
    with Tinygrad(device="cpu", pass_tokens=64).build(model) as session:
        found = _read(session, requests)
        scores = [output.token_logprobs for output in session.loglikelihood(pairs)]
    for request, rows, logprobs in zip(requests, found, scores, strict=True):
        targets = request.input_ids[request.start :]
        assert logprobs is not None
        np.testing.assert_allclose(rows[np.arange(len(targets)), targets], logprobs, **_CLOSE)
    if kind == "gguf":
        with Reference(dtype="float64").build(TINY) as exact:
            for rows, expected in zip(found, _read(exact, requests), strict=True):
                np.testing.assert_allclose(rows, expected, **_CLOSE)


def test_blocks_of_a_long_text_run_no_token_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[int] = []
    request = DistributionRequest(list(range(200)), start=90)
    with Tinygrad(device="cpu", pass_tokens=64).build(TINY) as session:
        made: Any = session
        logits = made._forward.logits

        def note(hidden: Any, rows: list[int], at_most: int) -> Any:
            heads.append(len(rows))
            return logits(hidden, rows, at_most)

        monkeypatch.setattr(made._forward, "logits", note)
        session.check()
        session.gc()
        heads.clear()
        before = made._scorer._packing.tokens_run
        assert len(_read(session, [request])[0]) == 110
        assert made._scorer._packing.tokens_run - before == 199
        assert sum(heads) == 110
        assert max(heads) <= SCORED_ROWS
