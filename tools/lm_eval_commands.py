"""Run the pairs of commands of docs/from-lm-eval.md, and compare every metric of both sides.

    .venv-lm-eval/bin/python tools/lm_eval_commands.py

Rows come from the runner's tests in place of the Hub, for both sides alike, and the model is a
small one: address and name of the real one are replaced, nothing else. It ends with 1 if a number
differs.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import isclose
from pathlib import Path
from typing import Any
from unittest.mock import patch

from evalution.rows.local import Rows
from evalution_core.builtins import builtin_path
from lm_eval_tables import ROOT, run_command

PAGE = ROOT / "docs" / "from-lm-eval.md"
ROWS = ROOT / "packages" / "evalution-runner" / "tests" / "data" / "rows"
MODEL = "Qwen/Qwen3-0.6B"
DATASETS = {
    ("Rowan/hellaswag", None): "hellaswag",
    ("allenai/ai2_arc", "ARC-Easy"): "arc_easy",
    ("allenai/ai2_arc", "ARC-Challenge"): "arc_challenge",
    ("baber/piqa", None): "piqa",
    ("winogrande", "winogrande_xl"): "winogrande",
    ("super_glue", "boolq"): "boolq",
    ("gsm8k", "main"): "gsm8k",
    ("EleutherAI/lambada_openai", "default"): "lambada_openai",
    ("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1"): "wikitext",
    ("cais/mmlu", "abstract_algebra"): "mmlu/abstract_algebra",
    ("glue", "sst2"): "sst2",
}
"""The folder of rows for each data set, by its repository and its configuration."""
PAIR = re.compile(r"^\$ (lm_eval run .*?)\n\$ (evalution run .*?)\n```", re.MULTILINE | re.DOTALL)
TOLERANCE = 1e-5
"""Relative; both sides compute in float32, in other batches."""


def read_pairs() -> list[tuple[str, str]]:
    """Read the pairs of commands of the page: lm-eval's, and ours."""
    page = PAGE.read_text(encoding="utf-8").replace("\\\n", "")
    return [(theirs, ours) for theirs, ours in PAIR.findall(page)]


def load_rows(path: str, name: str | None = None, *, split: str | None = None, **_: Any) -> Any:
    """Stand in for `datasets.load_dataset`: the splits of a folder of rows, or one of them."""
    from datasets import Dataset, DatasetDict

    folder = ROWS / next(
        where for (repository, config), where in DATASETS.items()
        if repository.rpartition("/")[2] == path.rpartition("/")[2] and config in (name, None)
    )  # fmt: skip
    splits = {
        file.stem: Dataset.from_list([dict(row.columns) for row in Rows(file)])
        for file in folder.glob("*.jsonl")
    }
    return splits[split] if split else DatasetDict(splits)


@contextmanager
def local_rows() -> Iterator[None]:
    with patch("datasets.load_dataset", load_rows):
        yield


def run_pair(theirs: str, ours: str, folder: Path) -> dict[str, tuple[float, float]]:
    """Run both commands in an empty folder; return the metrics of lm-eval, each with ours."""
    shutil.copytree(builtin_path("builtin:tiny", "safetensors"), folder / "tiny")
    with local_rows():
        run_command([*make_words(theirs), "--device", "cpu", "--output_path", "theirs"], folder)
        with suppress(SystemExit):  # so our command line ends
            run_command([*make_words(ours), "--output", "ours"], folder)
    (file,) = (folder / "theirs").rglob("results_*.json")
    expected = json.loads(file.read_text(encoding="utf-8"))["results"]
    results = json.loads((folder / "ours" / "results.json").read_text(encoding="utf-8"))
    found = {suite["name"]: suite["metrics"] for suite in results["suites"]}
    return pair_metrics(expected, found)


def make_words(command: str) -> list[str]:
    return shlex.split(command.replace(MODEL, "./tiny"))


def pair_metrics(
    theirs: Mapping[str, Mapping[str, Any]], ours: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[float, float]]:
    """Return the values of both sides by suite and metric; every metric of lm-eval has one here.

    Raises:
        KeyError: our side lacks a suite or a metric.
    """
    found: dict[str, tuple[float, float]] = {}
    for task, metrics in theirs.items():
        # A subject of MMLU is a task there, and a subset of one suite here.
        suite = ours[task] if task in ours else ours[task.partition("_")[0]]
        for key, value in metrics.items():
            name, comma, pipeline = key.partition(",")
            if comma and not name.endswith("_stderr"):
                metric = name if pipeline == "none" else key
                found[f"{task} {metric}"] = value, suite[metric]["value"]
    return found


def main(arguments: Sequence[str]) -> int:
    if arguments:
        print(__doc__)
        return 2
    different = 0
    for theirs, ours in read_pairs():
        print(f"\n$ {theirs}\n$ {ours}")
        with tempfile.TemporaryDirectory() as folder:
            for name, (expected, value) in run_pair(theirs, ours, Path(folder)).items():
                is_same = isclose(expected, value, rel_tol=TOLERANCE)
                different += not is_same
                print(f"{name:40} {expected:.6f} {value:.6f} {'' if is_same else 'DIFFERENT'}")
    print(f"{different} differences")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
