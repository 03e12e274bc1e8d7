"""Three small tokenizers that disagree on everything the scoring boundary depends on.

`bytelevel` splits words and has a leading BOS, `unigram` marks the beginning of a word and of the
text and has none, `crossing` merges across spaces and line ends and has only an EOS.
"""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

_SUBJECTS = ["the cat", "a dog", "the old man", "she", "it", "the number 12", "Привет", "naïve Zoë"]
_VERBS = ["sees", "had", "is", "doesn't like", "was", "answers:", "said"]
_OBJECTS = ["the house", "a tree", "no one", "3.14", "the end", "日本語", "the\tsea", "an apple"]
_ENDS = [".", "!", "?\n", ".\n\n", "...", ";", ", and "]


def write_tokenizers(folder: Path) -> None:
    for name, tokenizer in (
        ("bytelevel", _bytelevel()),
        ("unigram", _unigram()),
        ("crossing", _crossing()),
    ):
        (folder / f"{name}.json").write_text(tokenizer.to_str() + "\n", "utf-8")


def _sentences() -> list[str]:
    chance = random.Random(20)
    parts = (_SUBJECTS, _VERBS, _OBJECTS)
    return [
        " ".join(chance.choice(part) for part in parts)
        + chance.choice(_ENDS)
        + " ".join(chance.choice(part) for part in parts)
        + chance.choice(_ENDS)
        for _ in range(3000)
    ]


def _bytelevel() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        _sentences(),
        trainers.BpeTrainer(
            vocab_size=420, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return tokenizer


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(
        _sentences(),
        trainers.UnigramTrainer(
            vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>"
        ),
    )
    return tokenizer


def _crossing() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        _sentences(),
        trainers.BpeTrainer(vocab_size=520, special_tokens=["</s>"], initial_alphabet=alphabet),
    )
    return tokenizer
