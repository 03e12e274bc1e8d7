"""Random Llamas in bfloat16, drawn where they are run: `python -m tools.gpu.models SHAPE FOLDER`.

A shape is a section of shapes.toml. The folder `text` below FOLDER has a byte-level tokenizer that
is trained from this project's documents; `words` has the same weights with the tokenizer of the
benches, whose words are its tokens. Weights are the same wherever torch draws the same from a seed.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "bench"))

SHAPES = Path(__file__).with_name("shapes.toml")
SEED = 24
TEXT, WORDS = "text", "words"


def read_shape(name: str) -> dict[str, int]:
    return tomllib.loads(SHAPES.read_text("utf-8"))[name]


def train_tokenizer(size: int) -> Any:
    """Return a byte-level BPE tokenizer with at most `size` tokens that puts BOS first."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    texts = [path.read_text("utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B:1", special_tokens=[("<s>", 0)]
    )
    return tokenizer


def write_model(name: str, folder: Path) -> None:
    """Write both folders of a shape; they appear only once they are whole."""
    import torch
    import transformers
    from random_llama import write_checkpoint

    shape = read_shape(name)
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    count = write_checkpoint(part / WORDS, shape, SEED, dtype="bfloat16", device=device)
    (part / TEXT).mkdir()
    for file in (part / WORDS).iterdir():
        if file.suffix == ".safetensors" or "config" in file.name or "index" in file.name:
            (part / TEXT / file.name).symlink_to(Path("..") / WORDS / file.name)
    (part / TEXT / "tokenizer_config.json").unlink(missing_ok=True)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(shape["vocab_size"]),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
    ).save_pretrained(part / TEXT)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    print(f"{name}: {count / 1e9:.2f} B parameters")


def main() -> None:
    write_model(sys.argv[1], Path(sys.argv[2]))


if __name__ == "__main__":
    main()
