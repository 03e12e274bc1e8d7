"""The byte-level BPE tokenizer: Llama-3 splitting, merges that never touch a digit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
SPECIAL_TOKENS = (BOS, EOS, PAD, "<|system|>", "<|user|>", "<|assistant|>")
TRAINED_TOKENS = 562
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer of `TRAINED_TOKENS` plus the special tokens; it adds BOS.

    The text is cut at digits and at non-ASCII characters before the merges are learnt: every digit
    stays a token of its own, and every non-ASCII character several byte tokens.
    """
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = _splitting()
    trainer = trainers.BpeTrainer(
        vocab_size=TRAINED_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    plain = (piece for text in texts for piece in re.split(r"[0-9]+|[^\x00-\x7f]+", text))
    learner.train_from_iterator(plain, trainer)
    return _with_special_tokens(learner)


def _splitting() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _with_special_tokens(learner: Tokenizer) -> Tokenizer:
    size = learner.get_vocab_size()
    if size != TRAINED_TOKENS:
        raise ValueError(f"the text gave only {size} of {TRAINED_TOKENS} tokens")
    vocabulary, merges = vocabulary_and_merges(learner)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = _splitting()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS} $B:1",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return tokenizer


def vocabulary_and_merges(tokenizer: Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The BPE vocabulary without special tokens, and the merges in order."""
    model = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    return model["vocab"], merges


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a special token, which the tokenizer always has."""
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return token_id
