"""Makes the whole data folder of the tiny model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType
from tokenizers import Tokenizer

from tiny_model.checkpoint import WEIGHTS_FILE, write_checkpoint
from tiny_model.documents import tokenizer_texts
from tiny_model.gguf_file import write_gguf
from tiny_model.llama import LlamaShape, Weights
from tiny_model.model_card import model_card
from tiny_model.reference_values import Case, ReferenceModel
from tiny_model.rows import all_rows, write_rows
from tiny_model.scores import held_out_scores
from tiny_model.tokenizer import train_tokenizer
from tiny_model.training import train

GGUF_FILES = {
    "tiny-f32.gguf": GGMLQuantizationType.F32,
    "tiny-q8_0.gguf": GGMLQuantizationType.Q8_0,
}
REFERENCE_FILE = "reference_values.json"
ROWS_FOLDER = "rows"
# Committed files that name no hash of their own: the first can't hold its own, the second is prose.
UNHASHED = (REFERENCE_FILE, "README.md")


def train_and_write(folder: Path, steps: int, seed: int) -> dict[str, float]:
    """Trains, writes every file into `folder` and returns the held-out scores."""
    shape = LlamaShape()
    tokenizer = train_tokenizer(tokenizer_texts(seed))
    weights = train(tokenizer, shape, steps, seed)
    return write_all(folder, tokenizer, weights, shape, seed)


def write_all(
    folder: Path, tokenizer: Tokenizer, weights: Weights, shape: LlamaShape, seed: int
) -> dict[str, float]:
    """Every file of the data folder for weights that are already trained."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = all_rows(seed)
    write_rows(rows, folder / ROWS_FOLDER)
    write_checkpoint(folder, tokenizer, weights, shape)
    for name, kind in GGUF_FILES.items():
        write_gguf(folder / name, tokenizer, weights, shape, kind)
    cases = ReferenceModel(tokenizer, weights, shape).values(rows["prose"])
    files = file_hashes(folder)
    model = {"name": "tiny", "dtype": "float64", "sha256": files[WEIGHTS_FILE], "files": files}
    content = _reference_text(model, cases)
    (folder / REFERENCE_FILE).write_text(content, encoding="utf-8")
    scores = held_out_scores(tokenizer, weights, shape, rows)
    (folder / "README.md").write_text(model_card(shape, scores), encoding="utf-8")
    return scores


def _reference_text(model: dict[str, Any], cases: dict[str, list[Case]]) -> str:
    # One case a line: short enough to read, and a diff shows which cases changed.
    parts = [f'"model": {json.dumps(model, indent=1)}']
    for kind, entries in cases.items():
        lines = [json.dumps(entry, ensure_ascii=False) for entry in entries]
        parts.append(f'"{kind}": [\n' + ",\n".join(lines) + "\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below the folder, by relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.relative_to(folder).as_posix() not in UNHASHED
    }
