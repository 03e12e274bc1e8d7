"""How byte-level vocabularies split a text before merging, by GGUF's `tokenizer.ggml.pre`.

The expressions are those of the `tokenizer.json` files that the names stand for; the names and what
goes with them are llama.cpp's (`llama_vocab::impl::load`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_HEAD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_CASED_TAIL = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_PATH_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_SIGNS}|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}"
)
_GPT4O = (
    rf"{_CASED_HEAD}{_CONTRACTIONS}?|{_CASED_TAIL}{_CONTRACTIONS}?|\p{{N}}{{1,3}}"
    rf"|{_PATH_SIGNS}|{_TAIL}"
)
_TEKKEN = rf"{_CASED_HEAD}|{_CASED_TAIL}|\p{{N}}|{_PATH_SIGNS}|{_TAIL}"
_SEED_CODER = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_TAIL}"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_TAIL}",
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`patterns` split one after the other, each what the one before left in one piece.

    `ignore_merges`: a piece that is a token as a whole becomes it, whatever the merges would make.
    `adds_bos`: whether BOS leads a text where the file says nothing of it.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False


_OF_LLAMA3 = PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True)
_OF_QWEN2 = PreTokenizer((_QWEN2,))
_OF_GPT2 = PreTokenizer((_GPT2,))
_SINGLE_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_OF_GPT4O = PreTokenizer((_GPT4O,))
_OF_DEEPSEEK3 = PreTokenizer(_DEEPSEEK3)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0", "lfm2"), _OF_LLAMA3
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), PreTokenizer((_LLAMA3,))),
    **dict.fromkeys(("glm4", "glm5"), PreTokenizer((_LLAMA3,), ignore_merges=True)),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "solar-open", "grok-2"),
        _OF_QWEN2,
    ),
    "qwen35": PreTokenizer((_QWEN35,)),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "jais", "exaone4", "trillion"), _OF_GPT2),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        _SINGLE_DIGITS,
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), _OF_GPT4O),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, adds_bos=True),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _OF_DEEPSEEK3),
}
