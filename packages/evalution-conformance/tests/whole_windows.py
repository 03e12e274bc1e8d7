"""Distributions and likeliest tokens of whole windows, for engines that serve: to be subclassed.

The kit compares the last rows of a long request alone with those of the reference engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from evalution_core import LoglikelihoodRequest, Model, RequestFailure, RollingLoglikelihoodRequest
from evalution_core.requests import DistributionRequest
from evalution_enginekit.serving_session import ServingSession
from evalution_reference import Reference

TEXT = "The red cat sleeps in the park every morning. " * 50


def read_rows(session: Any, ids: list[int], start: int) -> Any:
    blocks: list[Any] = []
    for _, found in session.distributions([("only", DistributionRequest(ids, start))]):
        assert not isinstance(found, RequestFailure), found.error
        blocks.append(np.array(found.rows))
    return np.concatenate(blocks)


class WholeWindows:
    @pytest.fixture(scope="class")
    def reference(self) -> Iterator[Any]:
        with Reference(dtype="float64").build(Model("builtin:tiny")) as session:
            yield session

    @pytest.mark.parametrize("warm", [False, True])
    def test_rows_of_a_full_window_are_the_models_own(
        self, session: ServingSession, reference: Any, warm: bool
    ) -> None:
        """Neither processed, nor shifted, nor read from a cache instead of computed."""
        if not warm:
            session.gc()
        ids = session.tokenizer.encode(TEXT)[: session.max_model_len + 1]
        assert len(ids) == session.max_model_len + 1
        found, expected = read_rows(session, ids, 1), read_rows(reference, ids, 1)
        assert found == pytest.approx(expected, abs=1e-4)
        assert np.exp(found.astype(np.float64)).sum(-1) == pytest.approx(1, abs=1e-5)
        assert read_rows(session, ids, len(ids) - 1) == pytest.approx(expected[-1:], abs=1e-4)

    def test_likeliest_tokens_are_those_of_the_rows(
        self, session: ServingSession, reference: Any
    ) -> None:
        ids = session.tokenizer.encode(TEXT)[: session.max_model_len + 1]
        borders = [(1, 9), (9, 10), (64, 65), (40, len(ids)), (len(ids) - 1, len(ids)), (64, 65)]
        requests = [
            LoglikelihoodRequest(
                context_input_ids=ids[:start],
                continuation_input_ids=ids[start:end],
                top_logprobs=top,
            )
            for top, (start, end) in enumerate(borders, 1)
        ]
        requests[-1].top_logprobs = 10_000  # more than there are
        for _ in range(2):  # the second time from the cache
            found = session.loglikelihood(requests)
            for one, right in zip(found, reference.loglikelihood(requests), strict=True):
                assert one.token_logprobs == pytest.approx(right.token_logprobs, abs=1e-4)
                assert one.is_greedy == right.is_greedy
                assert one.top_logprobs is not None
                assert one.token_logprobs is not None
                tops = zip(one.top_logprobs, right.top_logprobs or [], strict=True)
                for (top, wanted), own in zip(tops, one.token_logprobs, strict=True):
                    assert len(top) == len(wanted)
                    assert list(top.values()) == sorted(top.values(), reverse=True)
                    assert list(top.values()) == pytest.approx(list(wanted.values()), abs=1e-4)
                    shared = top.keys() & wanted.keys()
                    assert len(shared) >= len(top) - 1  # two tokens may be alike
                    assert {i: top[i] for i in shared} == pytest.approx(
                        {i: wanted[i] for i in shared}, abs=1e-4
                    )
                    assert own <= max(top.values())
        text = RollingLoglikelihoodRequest(TEXT, top_logprobs=3)
        (rolled,), (expected,) = (one.loglikelihood_rolling([text]) for one in (session, reference))
        assert rolled.token_logprobs == pytest.approx(expected.token_logprobs, abs=1e-4)
        assert [len(top) for top in rolled.top_logprobs or ()] == [3] * rolled.token_count
