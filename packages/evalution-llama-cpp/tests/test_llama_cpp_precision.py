"""Precision of an f16 cache: the loss is llama.cpp's own rounding, not the engine's."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from evalution_core import BaseInferenceSession, LoglikelihoodRequest, Model
from evalution_core.builtins import builtin_path
from evalution_llama_cpp import LlamaCpp
from evalution_reference import Reference

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

TINY = Model("builtin:tiny")
WINDOW = 512


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    """Ids of the built-in prose, with what leads a text."""
    rows = builtin_path("builtin:tiny", "rows/prose").read_text("utf-8").splitlines()
    with LlamaCpp(device="cpu", n_threads=1).build(TINY) as session:
        tokenizer = session.tokenizer
        return [
            [*tokenizer.leading_ids, *tokenizer.encode(json.loads(row)["text"])][:WINDOW]
            for row in rows
        ]


def logprobs(session: BaseInferenceSession, texts: Sequence[list[int]]) -> list[float]:
    """Of all tokens but the first, each text alone and in an empty cache.

    Beside others, or behind what a cache has of it, its sums run in another order.
    """
    found: list[float] = []
    for ids in texts:
        request = LoglikelihoodRequest(context_input_ids=ids[:1], continuation_input_ids=ids[1:])
        found += session.loglikelihood([request])[0].token_logprobs or ()
        session.gc()
    return found


def plain_logprobs(texts: Sequence[list[int]]) -> list[float]:
    """As llama-cpp-python's documentation scores a text, with its default cache."""
    found: list[float] = []
    path = str(builtin_path("builtin:tiny", "gguf"))
    plain = llama_cpp.Llama(
        path, n_ctx=WINDOW, logits_all=True, n_threads=1, n_threads_batch=1, verbose=False
    )
    for ids in texts:
        plain.reset()
        plain.eval(ids[:-1])
        rows = plain.logits_to_logprobs(plain.scores[: len(ids) - 1])
        found += [float(row[token_id]) for row, token_id in zip(rows, ids[1:], strict=True)]
    plain.close()
    return found


def worst(found: Sequence[float], expected: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(found, expected, strict=True))


def test_an_f16_cache_gives_what_llama_cpps_own_call_gives(texts: list[list[int]]) -> None:
    plain = plain_logprobs(texts)
    engine = LlamaCpp(device="cpu", type_k="f16", type_v="f16", n_threads=1, n_batch=WINDOW)
    with engine.build(TINY) as session:
        assert worst(logprobs(session, texts), plain) < 1e-5
    with Reference(dtype="float64").build(TINY) as exact:
        assert 1e-4 < worst(plain, logprobs(exact, texts)) < 3e-3


def test_f16_cache_is_close_on_initial_weights(
    random_gguf: Callable[..., Path],
) -> None:
    # 0.02 is what Transformers draws a Llama's weights with.
    model = Model(str(random_gguf(deviation=0.02)))
    chance = random.Random(1)
    drawn = [[chance.randrange(3, 290) for _ in range(301)] for _ in range(10)]
    found: dict[str, list[float]] = {}
    for kind in ("f32", "f16"):
        engine = LlamaCpp(device="cpu", n_threads=1, type_k=kind, type_v=kind)
        with engine.build(model) as session:
            found[kind] = logprobs(session, drawn)
    assert len(found["f32"]) == 3000
    assert 1e-6 < worst(found["f16"], found["f32"]) < 3e-3
