"""Measure the peak of memory against weights and cache, and run out of memory on purpose.

    python -m tools.gpu.memory CHECKPOINT SHAPE FILE

The same requests run twice: with room, and in a part of the card that holds the weights and
little more. Both must give every answer, and the same scores within bfloat16's rounding. Without a
GPU, a pass over too many tokens raises torch's own error instead.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from tools.gpu.models import read_shape

from evalution_core import GenerationRequest, LoglikelihoodRequest, Model
from evalution_transformers import Transformers

ROOM_SHARE = 0.35
"""Room beside the weights on the second run, as a share of what the first one took there."""
TOLERANCE = 1e-1


def draw(shape: dict[str, int], rows: int) -> tuple[list[Any], list[Any]]:
    from random_llama import FIRST_WORD

    chance = random.Random(0)
    half = shape["max_position_embeddings"] // 4

    def ids(length: int) -> list[int]:
        return [chance.randrange(FIRST_WORD, shape["vocab_size"]) for _ in range(length)]

    pairs = [
        LoglikelihoodRequest(context_input_ids=ids(half), continuation_input_ids=ids(8))
        for _ in range(rows)
    ]
    prompts = [
        GenerationRequest(input_ids=ids(half), max_new_tokens=24, ignore_eos=True)
        for _ in range(rows)
    ]
    return pairs, prompts


def run(
    folder: str, rows: int, work: tuple[list[Any], list[Any]], squeeze: Callable[[Any], None]
) -> dict[str, Any]:
    """Run all requests; `squeeze` gets the model once it is loaded."""
    on_cuda = torch.cuda.is_available()
    options = {"dtype": "bfloat16", "device": "cuda" if on_cuda else "cpu", "batch_size": rows}
    engine: Any = Transformers(**options, pass_tokens=32768, paged=False)  # pyright: ignore[reportArgumentType]
    pairs, prompts = work
    with engine.build(Model(folder)) as session:
        weights = torch.cuda.memory_allocated() if on_cuda else 0
        squeeze(session._model)
        if on_cuda:
            torch.cuda.reset_peak_memory_stats()
        # One list a kind, so that the planned windows ask for as much at once as they can.
        scores = [found.logprob / found.token_count for found in session.loglikelihood(pairs)]
        answers = [output.token_ids for output in session.generate(prompts)]
        peak = torch.cuda.max_memory_allocated() if on_cuda else 0
    return {
        "weights_mib": weights >> 20,
        "peak_mib": peak >> 20,
        "scores": scores,
        "lengths": [len(ids) for ids in answers],
    }


def count_refusals() -> int:
    return torch.cuda.memory_stats()["num_ooms"] if torch.cuda.is_available() else PLANTED[0]


PLANTED = [0]
"""Refusals of memory that were raised without a GPU."""


def limit_card(bytes_: int) -> None:
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, bytes_ / total))


def plant_refusals(model: Any, stack: ExitStack, most: int) -> None:
    def refuse(_: Any, args: Any, inputs: Any) -> None:
        if (inputs["input_ids"] if "input_ids" in inputs else args[0]).numel() > most:
            PLANTED[0] += 1
            raise torch.OutOfMemoryError("planted: no GPU here")

    handle = model.base_model.register_forward_pre_hook(refuse, with_kwargs=True)
    stack.callback(handle.remove)


def find_cache_bytes(shape: dict[str, int], tokens: int) -> int:
    """Return the bytes of keys and values of so many tokens in bfloat16."""
    width = shape["hidden_size"] // shape["num_attention_heads"] * shape["num_key_value_heads"]
    return 2 * 2 * shape["num_hidden_layers"] * width * tokens


def measure(folder: str, shape: dict[str, int], rows: int) -> dict[str, Any]:
    work = draw(shape, rows)
    roomy = run(folder, rows, work, lambda model: None)
    on_cuda = torch.cuda.is_available()
    beside = roomy["peak_mib"] - roomy["weights_mib"]
    with ExitStack() as stack:

        def squeeze(model: Any) -> None:
            if on_cuda:
                limit_card(int(roomy["weights_mib"] + ROOM_SHARE * beside) << 20)
            else:
                plant_refusals(model, stack, shape["max_position_embeddings"])

        before = count_refusals()
        tight = run(folder, rows, work, squeeze)
    apart = max(abs(a - b) for a, b in zip(roomy["scores"], tight["scores"], strict=True))
    tokens = sum(len(one.input_ids) + one.max_new_tokens for one in work[1])
    return {
        "weights_mib": roomy["weights_mib"],
        "cache_mib": find_cache_bytes(shape, tokens) >> 20,
        "peak_mib": roomy["peak_mib"],
        "tight_peak_mib": tight["peak_mib"],
        "refusals": count_refusals() - before,
        "answers": len(tight["scores"]) + len(tight["lengths"]),
        "lost": 2 * rows - len(tight["scores"]) - len(tight["lengths"]),
        "apart": apart,
        "same_lengths": roomy["lengths"] == tight["lengths"],
    }


def main() -> None:
    folder, name, file = sys.argv[1:]
    shape = read_shape(name)
    found = measure(folder, shape, 8 if name == "tiny" else 128)
    Path(file).write_text(json.dumps(found, indent=1), "utf-8")
    print(json.dumps(found))
    if not found["refusals"]:
        sys.exit("memory never ran out, so nothing is known about recovery")
    if found["lost"] or not found["same_lengths"] or found["apart"] > TOLERANCE:
        sys.exit("an answer is lost or another one")


if __name__ == "__main__":
    main()
