"""The kit, the parity check and the lm-eval bridge encode by one rule, which stands in core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from evalution.parity.check import RequestEncoder
from evalution_core import BaseInferenceSession, LoglikelihoodRequest, Model
from evalution_core.encoding import ContextEncoder
from evalution_enginekit.mock import Mock

CONTEXT, CONTINUATION = "Tom and Ann", " walk"
IDS = list(CONTINUATION.encode())
"""The mock engine's tokens are bytes."""


@pytest.fixture
def session() -> Iterator[BaseInferenceSession]:
    with Mock().build(Model(path="mock")) as opened:
        yield opened


@pytest.fixture
def drift(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Give the last token of every context to its continuation, from the call on."""
    encode = ContextEncoder.encode

    def plant() -> None:
        monkeypatch.setattr(
            ContextEncoder, "encode", lambda self, context: encode(self, context)[:-1]
        )

    return plant


def test_kit_encodes_by_the_rule(session: BaseInferenceSession, drift: Callable[[], None]) -> None:
    request = LoglikelihoodRequest(CONTEXT, CONTINUATION)
    (before,) = session.loglikelihood([request])
    drift()
    (after,) = session.loglikelihood([request])
    assert before.token_ids == IDS
    assert after.token_ids == [ord("n"), *IDS]


def test_parity_check_encodes_by_the_rule(
    session: BaseInferenceSession, drift: Callable[[], None]
) -> None:
    assert session.tokenizer is not None

    def encode() -> list[int]:
        assert session.tokenizer is not None
        request = LoglikelihoodRequest(CONTEXT, CONTINUATION)
        encoded = RequestEncoder(session.tokenizer).encode(request)
        assert isinstance(encoded, LoglikelihoodRequest)
        return list(encoded.continuation_input_ids or ())

    assert encode() == IDS
    drift()
    assert encode() == [ord("n"), *IDS]


def test_lm_eval_bridge_encodes_by_the_rule(
    session: BaseInferenceSession, drift: Callable[[], None]
) -> None:
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    from lm_eval.api.instance import Instance

    from evalution_lm_eval import EvalutionLM

    model = EvalutionLM(session=session)

    def score() -> float:
        asked: Any = Instance("loglikelihood", {}, (CONTEXT, CONTINUATION), 0)
        ((logprob, _),) = model.loglikelihood([asked], disable_tqdm=True)
        return logprob

    ids = [256, *CONTEXT.encode()]  # after the mock's BOS
    for context, continuation in ((ids, IDS), (ids[:-1], [ids[-1], *IDS])):
        request = LoglikelihoodRequest(
            context_input_ids=context, continuation_input_ids=continuation
        )
        (expected,) = session.loglikelihood([request])
        assert score() == expected.logprob
        drift()
