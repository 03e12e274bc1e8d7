"""Neither batch size nor order changes an answer.

In float64 upstream still rounds inside (norms and rotary embeddings are float32, as are the logits
of `generate`), but it rounds the same numbers: what is left of another order of sums is below 1e-9.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from evalution_core import (
    BaseInferenceSession,
    GenerationOutput,
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    RollingLoglikelihoodRequest,
)
from evalution_transformers import Transformers, TransformersCompat

TINY = Model("builtin:tiny")
TOLERANCES = {"float32": 1e-4, "float64": 1e-9}
UNDECIDED = 1e-3
SIZES = (1, 3, 8, "auto")
WORDS = ["The", "cat", "sees", "the", "red", "house", ".", "One", "is", "8", "+", "1", "=", "9"]


def texts(count: int, seed: int) -> list[str]:
    """Beginnings that some share, from one word to a few dozen."""
    chance = random.Random(seed)
    heads = [" ".join(chance.choices(WORDS, k=length)) for length in (1, 6, 20)]
    return [
        " ".join([chance.choice(heads), *chance.choices(WORDS, k=chance.randint(0, 12))])
        for _ in range(count)
    ]


PAIRS = [LoglikelihoodRequest(text, f" {text[:9]}") for text in texts(24, 1)]
DOCUMENTS = [RollingLoglikelihoodRequest(text) for text in texts(9, 2)]
PROMPTS = [
    GenerationRequest(text, max_new_tokens=1 + 3 * (at % 4), logprobs=2, ignore_eos=True)
    for at, text in enumerate(texts(13, 3))
]


def ask_in_order(
    ask: Any, requests: Sequence[Any], seed: int | None, size: int | None
) -> list[Any]:
    """The outputs in the order of `requests`, asked for in another one."""
    order = list(range(len(requests)))
    if seed is not None:
        random.Random(seed).shuffle(order)
    outputs = ask([requests[at] for at in order], batch_size=size)
    return [output for _, output in sorted(zip(order, outputs, strict=True), key=lambda x: x[0])]


def answers(
    session: BaseInferenceSession, seed: int | None = None, size: int | None = None
) -> tuple[list[list[float]], list[GenerationOutput]]:
    """Log-probabilities of what was scored, and completions."""
    scored = ask_in_order(session.loglikelihood, PAIRS, seed, size)
    scored += ask_in_order(session.loglikelihood_rolling, DOCUMENTS, seed, size)
    return [output.token_logprobs for output in scored], ask_in_order(
        session.generate, PROMPTS, seed, size
    )


def count_decided_steps(output: GenerationOutput) -> int:
    """Steps before the first at which rounding may choose the token."""
    gaps = [max(top.values()) - min(top.values()) for top in output.top_logprobs or []]
    return next((at for at, gap in enumerate(gaps) if gap < UNDECIDED), len(gaps))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kind", [Transformers, TransformersCompat])
def test_batch_size_and_order_change_no_answer(kind: type[TransformersCompat], dtype: Any) -> None:
    tolerance = TOLERANCES[dtype]
    with kind(dtype=dtype, device="cpu", batch_size=1).build(TINY) as session:
        right_scores, right_texts = answers(session)
    steps = [count_decided_steps(output) for output in right_texts]
    assert sum(steps) > 0.9 * sum(len(output.token_ids or ()) for output in right_texts)
    for size in SIZES:
        with kind(dtype=dtype, device="cpu", batch_size=size).build(TINY) as session:
            for seed, cap in ((None, None), (5, None), (6, 3)):
                scores, completions = answers(session, seed, cap)
                for found, right in zip(scores, right_scores, strict=True):
                    assert found == pytest.approx(right, abs=tolerance, rel=0)
                for found, right, step in zip(completions, right_texts, steps, strict=True):
                    assert (found.token_ids or [])[:step] == (right.token_ids or [])[:step]
                    assert (found.token_logprobs or [])[:step] == pytest.approx(
                        (right.token_logprobs or [])[:step], abs=tolerance, rel=0
                    )
                    if step == len(right.token_ids or ()):
                        assert found.text == right.text
