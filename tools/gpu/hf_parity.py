"""Compare our scores and texts of a model with those of lm-eval's `hf` on the same weights.

    python -m tools.gpu.hf_parity CHECKPOINT DTYPE FILE [ROWS]

The requests are the questions, prose and prompts that evalution-reference carries. FILE gets the
largest difference of a log-probability a token, and how many texts part.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from evalution_core import (
    GenerationRequest,
    LoglikelihoodRequest,
    Model,
    RollingLoglikelihoodRequest,
)
from evalution_core.builtins import builtin_path
from evalution_transformers import Transformers

BOUNDS = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Nats a token, as in the conformance kit."""
NEW_TOKENS = 24
ROWS = 64


def read_rows(name: str, limit: int) -> list[dict[str, Any]]:
    text = builtin_path("builtin:tiny", f"rows/{name}").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()[:limit]]


def make_peers(folder: str, dtype: str, device: str) -> tuple[HFLM, HFLM]:
    """Return lm-eval's model, and again for whole texts, before which it must not put BOS twice."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    options: Any = {"pretrained": model.to(device), "tokenizer": tokenizer, "device": device}
    return HFLM(**options, batch_size=8), HFLM(**options, batch_size=8, add_bos_token=False)


def make_instances(kind: Any, arguments: Sequence[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(kind, {}, given, at) for at, given in enumerate(arguments)]


def find_apart(ours: Sequence[Any], theirs: Sequence[float]) -> float:
    return max(abs(a.logprob - b) / a.token_count for a, b in zip(ours, theirs, strict=True))


def compare(folder: str, dtype: str, limit: int) -> dict[str, Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    questions = read_rows("choices", limit)
    pairs = [
        (f"Question: {row['question']}\nAnswer:", f" {choice}")
        for row in questions
        for choice in row["choices"]
    ]
    texts = [(row["text"],) for row in read_rows("prose", limit)]
    prompts = [f"Question: {row['question']}\nAnswer:" for row in questions]
    engine = Transformers(dtype=dtype, device=device)  # pyright: ignore[reportArgumentType]
    with engine.build(Model(folder)) as session:
        scores = session.loglikelihood([LoglikelihoodRequest(*pair) for pair in pairs])
        rolled = session.loglikelihood_rolling([RollingLoglikelihoodRequest(*t) for t in texts])
        requests = [GenerationRequest(prompt, max_new_tokens=NEW_TOKENS) for prompt in prompts]
        made = [output.text for output in session.generate(requests)]
    peer, rolling = make_peers(folder, dtype, device)
    right = peer.loglikelihood(make_instances("loglikelihood", pairs), disable_tqdm=True)
    settings = {"until": [], "max_gen_toks": NEW_TOKENS, "do_sample": False}
    completions = peer.generate_until(
        make_instances("generate_until", [(prompt, settings) for prompt in prompts]),
        disable_tqdm=True,
    )
    whole = rolling.loglikelihood_rolling(
        make_instances("loglikelihood_rolling", texts), disable_tqdm=True
    )
    return {
        "dtype": dtype,
        "bound": BOUNDS[dtype],
        "requests": len(pairs),
        "texts": len(texts),
        "prompts": len(prompts),
        "apart": find_apart(scores, [logprob for logprob, _ in right]),
        "apart_rolling": find_apart(rolled, whole),
        "parted": sum(a != b for a, b in zip(made, completions, strict=True)),
    }


def main() -> None:
    folder, dtype, file, *rows = sys.argv[1:]
    found = compare(folder, dtype, int(rows[0]) if rows else ROWS)
    Path(file).write_text(json.dumps(found, indent=1), "utf-8")
    print(json.dumps(found))
    if max(found["apart"], found["apart_rolling"]) > found["bound"]:
        sys.exit(f"more than {found['bound']} nats a token apart")


if __name__ == "__main__":
    main()
