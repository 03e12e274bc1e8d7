"""Print what the scoring planner saves on the reference engine, against each request by itself.

The peer runs the same forward pass on the same ids, one request after the other, with logits at the
scored rows only. Pairs are interleaved; the ratio is the median of the ratios of the pairs. Shapes
stand in scoring_plan.toml; the rows are those of `builtin:tiny`.
"""

from __future__ import annotations

import json
import statistics
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from evalution_core import LoglikelihoodRequest, Model
from evalution_core.builtins import builtin_path
from evalution_core.encoding import encode_pair
from evalution_enginekit import TokenSpan, plan_scoring
from evalution_enginekit.sampling import token_logprobs
from evalution_reference import Reference
from evalution_reference.llama import Llama
from evalution_reference.load import load_checkpoint
from evalution_reference.session import ReferenceSession

TINY = Model("builtin:tiny")


def questions(rows: int, shots: int) -> list[LoglikelihoodRequest]:
    """Four-choice questions behind a head of fixed shots."""
    file = builtin_path("builtin:tiny", "rows/choices")
    found = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    head = "".join(
        f"Question: {row['question']}\nAnswer: {row['choices'][row['answer']]}\n\n"
        for row in found[:shots]
    )
    return [
        LoglikelihoodRequest(f"{head}Question: {row['question']}\nAnswer:", f" {choice}")
        for row in found[shots : shots + rows]
        for choice in row["choices"]
    ]


def one_by_one(model: Llama, spans: Sequence[TokenSpan]) -> list[list[float]]:
    scores: list[list[float]] = []
    for span in spans:
        hidden = model.hidden_states(np.array(span.fed), model.new_cache())
        targets = np.array(span.token_ids[span.start :])
        scores.append(token_logprobs(model.logits(hidden[span.start - 1 :]), targets)[0])
    return scores


def spans_of(
    session: ReferenceSession, requests: Sequence[LoglikelihoodRequest]
) -> list[TokenSpan]:
    spans: list[TokenSpan] = []
    for request in requests:
        context, rest = encode_pair(session.tokenizer, request.context, request.continuation)
        spans.append(TokenSpan(context + rest, len(context)))
    return spans


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    config = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    model = Llama(*load_checkpoint(builtin_path("builtin:tiny", "safetensors")))
    print(f"{'shots':>6}{'requests':>10}{'naive tokens':>14}{'planned':>9}{'tokens':>9}{'time':>8}")
    for shots in config["shots"]:
        requests = questions(config["rows"], shots)
        with Reference().build(TINY) as session:
            session.check()
            spans = spans_of(session, requests)
            plan = plan_scoring(spans)
            ratios: list[float] = []
            for _ in range(config["pairs"]):
                alone = seconds(lambda spans=spans: one_by_one(model, spans))
                session.gc()
                planned = seconds(lambda requests=requests: session.loglikelihood(requests))
                ratios.append(alone / planned)
        saved = plan.naive_tokens / plan.unique_tokens
        print(
            f"{shots:>6}{len(requests):>10}{plan.naive_tokens:>14}{plan.unique_tokens:>9}"
            f"{saved:>8.1f}x{statistics.median(ratios):>7.1f}x"
        )


if __name__ == "__main__":
    main()
