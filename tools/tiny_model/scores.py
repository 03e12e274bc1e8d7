"""Scores of the model on the held-out rows, in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from tokenizers import Tokenizer

from tiny_model.chat_template import render_chat
from tiny_model.decoding import score
from tiny_model.llama import LlamaShape, Weights
from tiny_model.pairs import Pair, encode_pair, rolling_windows
from tiny_model.rows import Row
from tiny_model.tokenizer import BOS, EOS, special_id

# What the committed model must reach on its held-out rows.
FLOORS = {
    "sums, 0 shots": 0.95,
    "sums, 3 shots": 0.95,
    "sums, 5 shots": 0.95,
    "choices, 0 shots": 0.9,
    "choices, 3 shots": 0.9,
    "chat": 0.9,
}
BATCH = 20


def held_out_scores(
    tokenizer: Tokenizer, weights: Weights, shape: LlamaShape, rows: dict[str, list[Row]]
) -> dict[str, float]:
    """Exact answers for sums and chat, accuracy for choices, perplexity per token for prose."""
    found = {}
    for shots in (0, 3, 5):
        pairs = [
            _sum_pair(tokenizer, _prompt(rows["sums_shots"], row, shots, index), row)
            for index, row in enumerate(rows["sums"])
        ]
        found[f"sums, {shots} shots"] = _exact(weights, shape, pairs)
    for shots in (0, 3):
        found[f"choices, {shots} shots"] = _accuracy(tokenizer, weights, shape, rows, shots)
    found["chat"] = _exact(weights, shape, [_chat_pair(tokenizer, row) for row in rows["chat"]])
    found["prose, perplexity"] = _perplexity(tokenizer, weights, shape, rows["prose"])
    return found


def _prompt(shot_rows: Sequence[Row], row: Row, shots: int, seed: int) -> str:
    examples = Random(seed).sample(list(shot_rows), shots)
    solved = [f"Question: {shot['question']}\nAnswer: {_answer(shot)}\n\n" for shot in examples]
    return "".join(solved) + f"Question: {row['question']}\nAnswer:"


def _answer(row: Row) -> str:
    return row["choices"][row["answer"]] if "choices" in row else row["answer"]


def _sum_pair(tokenizer: Tokenizer, prompt: str, row: Row) -> Pair:
    context, answer = encode_pair(tokenizer, prompt, " " + row["answer"])
    return context, [*answer, special_id(tokenizer, EOS)]


def _chat_pair(tokenizer: Tokenizer, row: Row) -> Pair:
    rendered = render_chat(row["messages"])
    prompt = tokenizer.encode(rendered, add_special_tokens=False).ids
    return prompt, tokenizer.encode(row["answer"] + EOS, add_special_tokens=False).ids


def _exact(weights: Weights, shape: LlamaShape, pairs: Sequence[Pair]) -> float:
    # Greedy decoding gives an answer whose every token, EOS included, has the largest logit.
    right = 0
    for start in range(0, len(pairs), BATCH):
        batch = score(weights, shape, pairs[start : start + BATCH])
        right += sum(scored.is_greedy for scored in batch)
    return right / len(pairs)


def _accuracy(
    tokenizer: Tokenizer,
    weights: Weights,
    shape: LlamaShape,
    rows: dict[str, list[Row]],
    shots: int,
) -> float:
    right = 0
    for index, row in enumerate(rows["choices"]):
        context = _prompt(rows["choices_shots"], row, shots, index)
        pairs = [encode_pair(tokenizer, context, " " + choice) for choice in row["choices"]]
        sums = [math.fsum(s.token_logprobs) for s in score(weights, shape, pairs)]
        right += sums.index(max(sums)) == row["answer"]
    return right / len(rows["choices"])


def _perplexity(
    tokenizer: Tokenizer, weights: Weights, shape: LlamaShape, rows: Sequence[Row]
) -> float:
    bos = special_id(tokenizer, BOS)
    logprobs: list[float] = []
    for row in rows:
        ids = tokenizer.encode(row["text"], add_special_tokens=False).ids
        for window in rolling_windows(ids, bos, shape.context):
            logprobs += score(weights, shape, [window])[0].token_logprobs
    return math.exp(-math.fsum(logprobs) / len(logprobs))
