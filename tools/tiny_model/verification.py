"""Checks of the committed data folder; each returns what is wrong, in sentences."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tiny_model.build import GGUF_FILES, REFERENCE_FILE, ROWS_FOLDER, file_hashes
from tiny_model.checkpoint import WEIGHTS_FILE, read_tokenizer, read_weights
from tiny_model.documents import DocumentSource
from tiny_model.gguf_file import gguf_tensors, read_gguf_tensors
from tiny_model.llama import LlamaShape, Weights
from tiny_model.reference_values import ReferenceModel
from tiny_model.rounding import F16_LIMIT, f16_cost
from tiny_model.rows import read_rows
from tiny_model.scores import FLOORS, held_out_scores
from tiny_model.tokenizer import SPECIAL_TOKENS

FOLDER_LIMIT = 6_000_000
FLOAT64_TOLERANCE = 1e-9
# Q8_0 rounds each block to steps of its largest value / 127; the tensor's largest bounds them all.
Q8_0_STEPS = 127


def problems(folder: Path) -> list[str]:
    """Everything that is wrong with the folder; prints the scores on the way."""
    shape, tokenizer, weights = LlamaShape(), read_tokenizer(folder), read_weights(folder)
    reference = json.loads((folder / REFERENCE_FILE).read_text(encoding="utf-8"))
    rows = read_rows(folder / ROWS_FOLDER)
    scores = held_out_scores(tokenizer, weights, shape, rows)
    for name, value in scores.items():
        print(f"{name:24} {value:.3f}")
    again = ReferenceModel(tokenizer, weights, shape).values(rows["prose"])
    return [
        *_file_problems(folder, reference["model"]),
        *_tokenizer_problems(tokenizer, rows),
        *(
            f"{name}: {scores[name]:.3f} < {low}"
            for name, low in FLOORS.items()
            if scores[name] < low
        ),
        *_gguf_problems(folder, weights, shape),
        *_rounding_problems(reference, weights, shape),
        *_differences("reference", {kind: reference[kind] for kind in again}, again),
    ]


def _file_problems(folder: Path, model: dict[str, Any]) -> Iterator[str]:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > FOLDER_LIMIT:
        yield f"the folder has {size} bytes, more than {FOLDER_LIMIT}"
    found = file_hashes(folder)
    if found[WEIGHTS_FILE] != model["sha256"]:
        yield f"{WEIGHTS_FILE} isn't what the reference values were computed for"
    for name in sorted(found.keys() | model["files"].keys()):
        if found.get(name) != model["files"].get(name):
            yield f"{name} differs from its recorded hash, or is missing, or is new"


def _tokenizer_problems(
    tokenizer: Tokenizer, rows: dict[str, list[dict[str, Any]]]
) -> Iterator[str]:
    texts = [str(value) for entries in rows.values() for row in entries for value in row.values()]
    texts += [
        " leading",
        "trailing ",
        "a\n\n\tb",
        "1234567 8.9",
        "naïve 猫 👩‍👩‍👧 \u00a0\u3000",
        "",
    ]
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if tokenizer.decode(ids) != text:
            yield f"the tokenizer doesn't give back {text!r}"
    for token in SPECIAL_TOKENS:
        if tokenizer.encode(token, add_special_tokens=False).tokens != [token]:
            yield f"{token} isn't one token"
    held_out = {row["question"] for stem in ("sums", "choices") for row in rows[stem]}
    source = DocumentSource(0)
    seen = held_out & {source.question()[0] for _ in range(20_000)}
    if seen:
        yield f"held-out questions occur in training: {sorted(seen)[:3]}"


def _gguf_problems(folder: Path, weights: Weights, shape: LlamaShape) -> Iterator[str]:
    wanted = dict(gguf_tensors(weights, shape))
    for file in GGUF_FILES:
        found = read_gguf_tensors(folder / file)
        if found.keys() != wanted.keys():
            yield f"{file} has other tensors than the checkpoint"
            continue
        for name, tensor in wanted.items():
            step = 0.0 if file == "tiny-f32.gguf" else float(np.abs(tensor).max()) / Q8_0_STEPS
            if np.abs(found[name] - tensor).max() > step:
                yield f"{file}: {name} differs from the checkpoint"


def _rounding_problems(
    reference: dict[str, Any], weights: Weights, shape: LlamaShape
) -> Iterator[str]:
    cases = [*reference["scoring"], *reference["truncation"]]
    texts = [[*case["context_ids"], *case["continuation_ids"]] for case in cases]
    texts += [case["token_ids"] for case in reference["rolling"]]
    cost = f16_cost(weights, shape, [ids[: shape.context] for ids in texts])
    print(f"f16 cache                {cost.largest:.1e} at most, {cost.mean:.1e} on average")
    if cost.largest > F16_LIMIT:
        yield f"a cache in f16 moves a log-probability by {cost.largest:.1e}, over {F16_LIMIT}"


def _differences(place: str, recorded: Any, computed: Any) -> Iterator[str]:
    if isinstance(recorded, dict) and isinstance(computed, dict):
        if recorded.keys() != computed.keys():
            yield f"{place}: other keys"
            return
        for key, value in recorded.items():
            yield from _differences(f"{place}.{key}", value, computed[key])
    elif isinstance(recorded, list) and isinstance(computed, list):
        if len(recorded) != len(computed):
            yield f"{place}: other length"
            return
        for index, (old, new) in enumerate(zip(recorded, computed, strict=True)):
            yield from _differences(f"{place}[{index}]", old, new)
    elif isinstance(recorded, float) and isinstance(computed, float):
        if not math.isclose(recorded, computed, rel_tol=0, abs_tol=FLOAT64_TOLERANCE):
            yield f"{place}: {recorded!r} recorded, {computed!r} computed"
    elif recorded != computed:
        yield f"{place}: {recorded!r} recorded, {computed!r} computed"
