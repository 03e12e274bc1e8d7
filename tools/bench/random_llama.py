"""A random Llama on disk, and texts for it: its tokenizer has one word for each token."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

PROBE = "The first of 3 apples is red, and the other 2 are green."
"""Words for the self-check of a session: unknown words would all be one token, and bfloat16 gives
equal tokens equal scores."""
FIRST_WORD = 3 + len(PROBE.split())
"""The lowest id of a drawn word; those below are special tokens and the words of PROBE."""
PAD = 1
"""The id of `</s>`, which fills short rows too."""


def write_checkpoint(
    folder: Path,
    shape: Mapping[str, Any],
    seed: int,
    *,
    dtype: str = "float32",
    device: str = "cpu",
) -> int:
    """Draw the weights of a Llama of this `shape` on `device`; returns how many there are."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(seed)
    settings = transformers.LlamaConfig(
        **shape, bos_token_id=0, eos_token_id=PAD, tie_word_embeddings=False
    )
    with torch.device(device):
        model = transformers.LlamaForCausalLM(settings).to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size="2GB")
    words = {word: at for at, word in enumerate(["<s>", "</s>", "<unk>", *PROBE.split()])}
    words |= {f"w{at}": at for at in range(FIRST_WORD, shape["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    ).save_pretrained(folder)
    return model.num_parameters()


def draw_ids(chance: random.Random, length: Sequence[int], vocabulary: int) -> list[int]:
    """Ids of words, as many as a number between the two of `length`."""
    least, most = length
    return [chance.randrange(FIRST_WORD, vocabulary) for _ in range(chance.randint(least, most))]


def draw_text(chance: random.Random, length: Sequence[int], vocabulary: int) -> str:
    """The same as text."""
    return " ".join(f"w{at}" for at in draw_ids(chance, length, vocabulary))
