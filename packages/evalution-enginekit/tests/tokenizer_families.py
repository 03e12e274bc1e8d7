"""Small checkpoints' tokenizers of many families, trained when they are asked for."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

CORPUS = [
    "The quick brown fox jumps over the lazy dog 1234567890 times, and isn't tired.",
    "Don't you'll we're I'm they've it's: contractions, and 3.14159 or 2026-11-23.",
    "Grüße aus München, 東京 und Москва! naïve café coöperate 日本語のテキスト",
    "def f(x):\n    return x ** 2  # a comment\n\n\tfor i in range(10): print(i)\n",
    "user assistant system the of and to in a is that it for on was with as be by",
    "  two  blanks   three    four, tabs\t\tand \n\n newlines \r\n mixed ½ ﬁne ①",
] * 4
MARKS = ["<unk>", "<s>", "</s>", "<turn>", "<end>"]
TEMPLATE = "{{ bos_token }}{% for m in messages %}<turn>{{ m.content }}{{ eos_token }}{% endfor %}"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

FAMILIES: dict[str, tuple[str, str, str | None]] = {
    "llama": ("pieces", "llama", "LlamaTokenizerFast"),
    "llama-legacy": ("prepended", "llama", "LlamaTokenizer"),
    "llama-3": ("bytes", "llama", "PreTrainedTokenizerFast"),
    "gemma": ("pieces", "gemma2", "GemmaTokenizer"),
    "qwen2": ("bytes", "qwen2", "Qwen2Tokenizer"),
    "qwen2-generic": ("bytes", "qwen2", "PreTrainedTokenizerFast"),
    "qwen3": ("bytes", "qwen3", "Qwen2TokenizerFast"),
    "qwen3.5": ("bytes", "qwen3_5", "Qwen2Tokenizer"),
    "gpt2": ("bytes", "gpt2", "GPT2Tokenizer"),
    "gpt2-undeclared": ("bytes", "gpt2", None),
    "neox": ("bytes", "gpt_neox", "GPTNeoXTokenizerFast"),
    "mistral": ("prepended", "mistral", "LlamaTokenizerFast"),
    "phi-3": ("prepended", "phi3", "LlamaTokenizerFast"),
    "olmo": ("bytes", "olmo", "GPTNeoXTokenizer"),
    "olmo-2": ("bytes", "olmo2", "GPT2Tokenizer"),
    "glm": ("bytes", "glm4", "PreTrainedTokenizerFast"),
    "deepseek": ("bytes", "deepseek_v3", "LlamaTokenizerFast"),
    "falcon": ("bytes", "falcon", "PreTrainedTokenizerFast"),
    "cohere": ("bytes", "cohere", "CohereTokenizerFast"),
    "t5": ("unigram", "t5", "T5TokenizerFast"),
    "tekken": ("tekken", "mistral", "LlamaTokenizer"),
    "backend": ("bytes", "llama", "TokenizersBackend"),
    "acme": ("bytes", "acme", "AcmeTokenizer"),
    "bert": ("bytes", "bert", "BertTokenizer"),
    "llama-unigram": ("unigram", "llama", "LlamaTokenizer"),
}
"""File, type of model and declared class of each."""

_NEW = ["<|extra|>", "<|more|>"]
_SPACED = {"content": "<|spaced|>", "lstrip": True, "rstrip": True, "normalized": False}
VARIATIONS: dict[str, dict[str, Any]] = {
    "as saved": {},
    "add_bos_token": {"add_bos_token": True},
    "no add_bos_token": {"add_bos_token": False},
    "add_eos_token": {"add_eos_token": True},
    "add_prefix_space": {"add_prefix_space": True},
    "no add_prefix_space": {"add_prefix_space": False},
    "legacy": {"legacy": True},
    "not legacy": {"legacy": False},
    "no post-processor": {},
    "additional tokens": {"additional_special_tokens": _NEW},
    "extra tokens": {"extra_special_tokens": _NEW},
    "named extra tokens": {"extra_special_tokens": {"image_token": "<|extra|>"}},
    "own token": {"image_token": "<|extra|>"},
    "added tokens": {"added_tokens_decoder": {"400": {**_SPACED, "special": True}}},
    "split tokens": {"split_special_tokens": True},
    "tokens with a type": {"eos_token": {"__type": "AddedToken", "content": "</s>"}},
    "tokens without a type": {"eos_token": {"content": "</s>", "lstrip": False}},
    "no tokens": {"bos_token": None, "eos_token": None, "unk_token": None, "pad_token": None},
}


def write_tokenizer(folder: Path, family: str, variation: str) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and `config.json` of one checkpoint."""
    file, model_type, declared = FAMILIES[family]
    content = json.loads(_train(file))
    if variation == "no post-processor":
        content["post_processor"] = None
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings = {**named, "tokenizer_class": declared, "chat_template": TEMPLATE}
    settings |= VARIATIONS[variation]
    if declared is None:
        del settings["tokenizer_class"]
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in (
        ("tokenizer.json", content),
        ("tokenizer_config.json", settings),
        ("config.json", {"model_type": model_type, "eos_token_id": 2}),
    ):
        (folder / name).write_text(json.dumps(value), "utf-8")


@cache
def _train(kind: str) -> str:
    from tokenizers import (
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    space = "\u2581"
    if kind == "unigram":
        built: Any = Tokenizer(models.Unigram())
        built.pre_tokenizer = pre_tokenizers.Metaspace()
        built.decoder = decoders.Metaspace()
        trainer: Any = trainers.UnigramTrainer(
            vocab_size=300, special_tokens=MARKS, unk_token="<unk>", show_progress=False
        )
    elif kind in ("pieces", "prepended"):
        built = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        lead = [normalizers.Prepend(space)] if kind == "prepended" else []
        built.normalizer = normalizers.Sequence([*lead, normalizers.Replace(" ", space)])
        built.decoder = decoders.Sequence(
            [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        spelled = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(
            vocab_size=700, special_tokens=[*MARKS, *spelled], show_progress=False
        )
    else:
        built = Tokenizer(models.BPE())
        split = pre_tokenizers.Split(Regex(_TEKKEN if kind == "tekken" else _LLAMA3), "isolated")
        built.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        built.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=MARKS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    built.train_from_iterator(CORPUS, trainer)
    ids = [("<s>", built.token_to_id("<s>"))]
    built.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", ids)
    content = json.loads(built.to_str())
    content["added_tokens"] = [
        each for each in content["added_tokens"] if not each["content"].startswith("<0x")
    ]
    return json.dumps(content)


def write_texts(count: int, seed: int = 0) -> Iterator[str]:
    """Yield texts of words, blanks, digits, accents, code and special tokens in random order."""
    chance = random.Random(seed)
    parts = [*" ".join(CORPUS[:6]).split(" "), *MARKS, *_NEW, "<|spaced|>", *" \n\t0123456789"]
    parts += ["  ", "   ", "12345", "'s", "'LL", "\u0301", "\u00a0", "🙂", "東", "\r\n", "½", "ﬁ"]
    for _ in range(count):
        yield "".join(
            chance.choice(parts) + chance.choice(["", " "]) for _ in range(chance.randrange(1, 12))
        )
