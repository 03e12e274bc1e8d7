"""Scoring with shared prefixes: the same values as one by one, and hardly a token twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest

from evalution_enginekit import TokenScore, TokenSpan, plan_scoring

pytest.importorskip("optimum.intel", reason="optimum-intel is not installed")

from evalution_openvino.score import PrefixTreeScorer, make_tree
from evalution_openvino.stateful import RunForms, StatefulRequest

VOCAB = 97
FLOAT32 = 1e-4


def _spans(seed: int, questions: int = 6) -> list[TokenSpan]:
    """Choices of questions of different lengths behind a common head, in a mixed order."""
    numbers = random.Random(seed)

    def ids(low: int, high: int) -> list[int]:
        return [numbers.randrange(3, VOCAB) for _ in range(numbers.randint(low, high))]

    head = [1, *ids(30, 40)]
    found: list[TokenSpan] = []
    for _ in range(questions):
        context = head + ids(4, 20)
        found += (TokenSpan(context + choice, len(context)) for choice in (ids(1, 5), ids(1, 1)))
    found.append(TokenSpan(head[:20], 1))
    numbers.shuffle(found)
    return found


def _scores(scorer: PrefixTreeScorer, spans: Sequence[TokenSpan]) -> list[TokenScore]:
    return [score for step in scorer.score(spans) for score in step]


def _largest_difference(left: Sequence[TokenScore], right: Sequence[TokenScore]) -> float:
    pairs = [(a.logprobs, b.logprobs) for a, b in zip(left, right, strict=True)]
    return max(abs(x - y) for a, b in pairs for x, y in zip(a, b, strict=True))


def _make_scorer(session: Any, **changes: Any) -> PrefixTreeScorer:
    """The session's scorer with other limits, on the same request."""
    scorer = session._scorer
    given = {"pass_tokens": 512, "state_tokens": 1 << 16, "forms": scorer._forms} | changes
    return PrefixTreeScorer(scorer._request, given.pop("forms"), **given)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral"])
def test_scores_are_those_of_torch(
    random_session: Callable[..., Any], write_checkpoint: Callable[..., Path], kind: str
) -> None:
    import torch
    import transformers

    spans = _spans(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        write_checkpoint(kind), dtype=torch.float64, attn_implementation="eager"
    )
    session = random_session(kind)
    found = _scores(session._scorer, spans)
    for span, score in zip(spans, found, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([list(span.token_ids)])).logits[0]
        expected = logits.log_softmax(-1)[range(span.start - 1, len(span.token_ids) - 1)]
        chosen = expected.gather(1, torch.tensor(span.token_ids[span.start :])[:, None])[:, 0]
        assert numpy.abs(numpy.array(score.logprobs) - chosen.numpy()).max() < FLOAT32
        assert score.is_greedy == bool((chosen >= expected.amax(-1)).all())


@pytest.mark.parametrize(
    ("kind", "shares", "why"),
    [("llama", True, None), ("gpt2", True, None), ("mistral", False, "16 tokens back")],
)
def test_prefixes_are_shared_where_the_model_allows_it(
    random_session: Callable[..., Any], kind: str, shares: bool, why: str | None
) -> None:
    session = random_session(kind)
    execution = session.describe_execution()
    assert execution["scoring"] == ("shared prefixes" if shares else "padded rows")
    assert execution["logits"] == "chosen rows"
    if why is None:
        assert execution["scoring_fallback"] is None
    else:
        assert why in execution["scoring_fallback"]


@pytest.mark.parametrize("pass_tokens", [1, 7, 64, 512])
@pytest.mark.parametrize("state_tokens", [40, 1 << 16])
def test_limits_change_no_value(
    random_session: Callable[..., Any], pass_tokens: int, state_tokens: int
) -> None:
    spans = _spans(2)
    session = random_session("llama")
    plain = _make_scorer(session, forms=RunForms(shares=False, cuts=False, pads=False))
    limited = _make_scorer(session, pass_tokens=pass_tokens, state_tokens=state_tokens)
    expected = _scores(plain, spans)
    assert _largest_difference(_scores(limited, spans), expected) < FLOAT32
    # Behind the saved head of the call before.
    assert _largest_difference(_scores(limited, spans[::-1]), expected[::-1]) < FLOAT32


def test_a_shared_prefix_is_run_once(random_session: Callable[..., Any]) -> None:
    spans = _spans(3, questions=40)
    session = random_session("llama")
    scorer = session._scorer
    before = scorer._request.forwarded
    _scores(scorer, spans)
    forwarded = scorer._request.forwarded - before
    # One saved head serves the next call, though its sequences go on otherwise.
    before = scorer._request.forwarded
    head = min(len(span.token_ids) for span in spans) - 1
    common = list(spans[0].token_ids[:head])
    _scores(scorer, [TokenSpan([*common, 5, 6, 7], head + 1), TokenSpan([*common, 9, 8], head)])
    again = scorer._request.forwarded - before
    plan = plan_scoring(spans)
    # Padding on the right is what comes on top: the sequences of a run are of similar length.
    assert forwarded <= 1.25 * plan.unique_tokens
    assert plan.naive_tokens > 3 * plan.unique_tokens
    assert again < head / 2


def test_sequences_of_one_run_do_not_affect_each_other(random_session: Callable[..., Any]) -> None:
    spans = _spans(4)
    session = random_session("llama")
    together = _scores(session._scorer, spans)
    session.gc()
    alone = [_scores(session._scorer, [span])[0] for span in spans]
    for size in (3, 8):
        parts = [spans[begin : begin + size] for begin in range(0, len(spans), size)]
        apart = [score for part in parts for score in _scores(session._scorer, part)]
        assert _largest_difference(apart, alone) < FLOAT32
    assert _largest_difference(together, alone) < FLOAT32


def test_out_of_memory_halves_the_pass(
    random_session: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = _spans(5)
    session = random_session("llama")
    scorer = session._scorer
    expected = _scores(scorer, spans)
    scorer.forget()
    run, largest = StatefulRequest.run, 24

    def scarce(self: StatefulRequest, given: Any) -> Any:
        if given.token_ids.size > largest:
            raise MemoryError("Failed to allocate 8 bytes")
        return run(self, given)

    monkeypatch.setattr(StatefulRequest, "run", scarce)
    assert _largest_difference(_scores(scorer, spans), expected) < FLOAT32
    assert scorer._pass_tokens <= largest


def test_a_long_segment_becomes_a_chain_of_nodes() -> None:
    plan = plan_scoring([TokenSpan(list(range(11)), 3), TokenSpan([0, 1, 2, 50, 51], 3)])
    (root,) = make_tree(plan, 2)
    lengths: list[int] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        lengths.append(len(node.token_ids))
        assert all(0 <= t.position - node.depth < len(node.token_ids) for t in node.targets)
        waiting += node.children
    assert max(lengths) == 2
    assert sum(lengths) == plan.unique_tokens
