"""Teach the tiny model to write numbers backwards, and watch its scores while it learns.

    python docs/examples/fine_tune.py

A plain torch loop trains the weights that the backend `local` prepared. Every 50 steps the engine
`Transformers` attaches to them and runs three suites: held-out numbers, the sums that the model
could do before, and the prose it was trained on. The report plots the scores over the steps. It
takes evalution-training[local], evalution-transformers and evalution-runner[report].
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import evalution
from evalution.report import write_report
from evalution_training import PeriodicEvaluation, prepare_model
from evalution_transformers import Transformers

PROMPT = "Write {number} backwards:"
HELD_OUT = 100
BATCH = 32


def main(folder: Path, *, steps: int = 300, every: int = 50) -> list[float]:
    """Train, evaluate every so many steps (0: never), and write the report.

    Returns the loss of each step.
    """
    numbers = [f"{number:03}" for number in range(1000)]
    random.Random(0).shuffle(numbers)
    suites = tests_of(numbers[:HELD_OUT], folder)
    params = {"dtype": "float32", "device": "cpu"}
    losses: list[float] = []
    with prepare_model("local", model="builtin:tiny", run_dir=folder, params=params) as handles:
        evaluation = PeriodicEvaluation(
            Transformers(),
            handles,
            every=every or steps + 1,
            evaluate=lambda session, step: evalution.run(
                session=session,
                model={"path": "builtin:tiny", "label": "tiny in training"},
                tests=suites,
                step=step,
                output=folder / f"step-{step:04}",
            ),
        )
        if every:
            evaluation.after(0)
        for step, loss in enumerate(training(handles, numbers[HELD_OUT:], steps), start=1):
            losses.append(loss)
            if (result := evaluation.after(step)) is not None:
                told(step, loss, result)
    if every:
        results = list(evaluation.results.values())
        print("report:", write_report(results, folder / "report.html").path)
    return losses


def tests_of(numbers: Sequence[str], folder: Path) -> list[Any]:
    """Suites on held-out numbers, and on what the model could do before."""
    rows = [{"number": number, "answer": f" {number[::-1]}"} for number in numbers]
    file = folder / "numbers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    final = [{"regex": "#### (-?[0-9]+)"}]
    return [
        evalution.Generation.from_options(
            {
                "name": "numbers backwards",
                "data": str(file),
                "prompt": PROMPT,
                "target": "answer",
                "max_new_tokens": 8,
            }
        ),
        evalution.Generation.from_options(
            {
                "name": "sums",
                "data": "builtin:tiny/sums",
                "prompt": "Question: {question}\nAnswer:",
                "target": "answer",
                "filters": final,
                "target_filters": final,
                "max_new_tokens": 48,
                "max_rows": 40,
            }
        ),
        evalution.Perplexity(data="builtin:tiny/prose", text="text", max_rows=20),
    ]


def training(handles: dict[str, Any], numbers: Sequence[str], steps: int) -> Any:
    """Train the model in `handles`; yields the loss of each step."""
    model, tokenizer = handles["model"], handles["tokenizer"]
    texts = [f"{PROMPT.format(number=n)} {n[::-1]}{tokenizer.eos_token}" for n in numbers]
    ids = torch.tensor([tokenizer(text)["input_ids"] for text in texts])
    labels = ids.clone()
    labels[:, : len(tokenizer(PROMPT.format(number="000"))["input_ids"])] = -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    torch.manual_seed(0)
    for _ in range(steps):
        batch = torch.randint(len(ids), (BATCH,))
        loss = model(input_ids=ids[batch], labels=labels[batch]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def told(step: int, loss: float, result: evalution.RunResult) -> None:
    """Print a line about the step."""
    scores = [
        f"{suite.name} {name} {metric.value:.3f}"
        for suite in result.suites
        for name, metric in list(suite.metrics.items())[:1]
    ]
    print(f"step {step}: loss {loss:.3f}, {', '.join(scores)}", flush=True)


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/fine-tune")
    target.mkdir(parents=True)
    main(target)
