"""Teach a model on a Tinker-compatible server to write numbers backwards, and plot its scores.

    python docs/examples/fine_tune_tinker.py URL MODEL TOKENIZER

A LoRA is trained on the server. Every 50 steps the engine `Tinker` attaches to the weights of that
moment. It takes evalution-training[tinker], evalution-tinker and evalution-runner[report]. The
environment variable TINKER_API_KEY holds the key; for a server that asks for none, any text with
`tml-` first.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import tinker

import evalution
from evalution.report import write_report
from evalution_core.builtins import builtin_path
from evalution_enginekit import TokenizerFile
from evalution_tinker import Tinker
from evalution_training import PeriodicEvaluation, prepare_model

PROMPT = "Write {number} backwards:"
HELD_OUT = 12
BATCH = 16


def main(
    url: str, model: str, tokenizer: str, folder: Path, *, steps: int = 200, every: int = 50
) -> list[float]:
    """Train, evaluate every so many steps, and write the report; returns the accuracies."""
    numbers = [f"{number:03}" for number in range(1000)]
    random.Random(0).shuffle(numbers)
    suites = [_suite(numbers[:HELD_OUT], folder)]
    engine = Tinker(tokenizer_path=tokenizer, max_model_len=256, batch_size=1)
    with prepare_model("tinker", model=model, run_dir=folder, params={"base_url": url}) as handles:
        made = handles["service_client"].create_lora_training_client(
            base_model=model, rank=8, seed=1
        )
        # From tinker 0.38 on it is a future of the client.
        training = handles["training_client"] = made.result() if hasattr(made, "result") else made
        evaluation = PeriodicEvaluation(
            engine,
            handles,
            every=every,
            evaluate=lambda session, step: evalution.run(
                session=session, model={"path": model}, tests=suites, step=step
            ),
        )
        evaluation.after(0)
        data = [_datum(number, tokenizer) for number in numbers[HELD_OUT:]]
        for step in range(1, steps + 1):
            batch = random.Random(step).sample(data, BATCH)
            training.forward_backward(batch, "cross_entropy").result()
            training.optim_step(tinker.types.AdamParams(learning_rate=3e-3)).result()
            evaluation.after(step)
    results = list(evaluation.results.values())
    print("report:", write_report(results, folder / "report.html").path)
    scores = [result.suites[0].metrics["exact_match"].value for result in results]
    return [score or 0.0 for score in scores]


def _suite(numbers: list[str], folder: Path) -> Any:
    rows = [{"number": number, "answer": f" {number[::-1]}"} for number in numbers]
    file = folder / "numbers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return evalution.Generation(
        name="numbers backwards", data=str(file), prompt=PROMPT, target="answer", max_new_tokens=8
    )


def _datum(number: str, tokenizer: str) -> Any:
    """One number as the server is taught it: the loss is on the answer and the end alone."""
    codec = _codec(tokenizer)
    context = [*codec.leading_ids, *codec.encode(PROMPT.format(number=number))]
    ids = [*context, *codec.encode(f" {number[::-1]}"), codec.eos_id]
    return tinker.types.Datum(
        model_input=tinker.types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={
            "target_tokens": ids[1:],
            "weights": [float(at >= len(context)) for at in range(1, len(ids))],
        },
    )


def _codec(tokenizer: str) -> Any:
    folder = (
        builtin_path(tokenizer, "safetensors")
        if tokenizer.startswith("builtin:")
        else Path(tokenizer)
    )
    return TokenizerFile(folder / "tokenizer.json")


if __name__ == "__main__":
    target = Path("runs/fine-tune-tinker")
    target.mkdir(parents=True)
    print(main(*sys.argv[1:4], target))
