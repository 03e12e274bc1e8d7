"""A `tokenizer.json` as Transformers' tokenizer classes read it, without Transformers.

Some classes take only vocabulary, merges and post-processor from the file, and bring the way to
split text themselves; `tokenizer_config.json` adds tokens to all of them. The rules are those of
Transformers 5.23 (`AutoTokenizer`, `TokenizersBackend`), for the classes of causal models that are
trained today; tests compare every one of them with Transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from evalution_core import ConfigurationError, EngineUnavailableError

if TYPE_CHECKING:
    import tokenizers

_AS_STORED = "TokenizersBackend"
_PLAIN = frozenset({_AS_STORED, "PreTrainedTokenizer", "PythonBackend"})
"""Classes that take the file as it stands."""
_MODELS = {
    _AS_STORED: "ernie4_5 ernie4_5_moe flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite gpt_bigcode "
    "granite granitemoe granitemoehybrid granitemoeshared hyperclovax internlm3 iquestcoder jamba "
    "kimi_linear mimo_v2_flash minicpm3 minimax_m2 ministral ministral3 mistral mistral3 mixtral "
    "nemotron olmo2 olmo3 olmo_hybrid persimmon phi3 phimoe stablelm",
    "Qwen2Tokenizer": "qwen2 qwen2_moe qwen2_vl qwen2_5_vl qwen3 qwen3_moe qwen3_next qwen3_vl "
    "qwen3_vl_moe",
    "Qwen3_5Tokenizer": "qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen4_exp",
    "GPT2Tokenizer": "codegen dbrx gpt2 gpt_neo gptj jais2 opt phi starcoder2",
    "GPTNeoXTokenizer": "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm",
    "GemmaTokenizer": "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma",
    "CohereTokenizer": "cohere cohere2",
    "T5Tokenizer": "mt5 switch_transformers t5",
}
REGISTERED_CLASSES = {kind: name for name, kinds in _MODELS.items() for kind in kinds.split()}
"""The class that Transformers registers for each type of model that is known here."""
_OVERRULED = (
    "ernie4_5 ernie4_5_moe fuyu hyperclovax internlm3 iquestcoder jamba minicpm3 minimax_m2 "
    "nemotron phi3 phimoe qwen2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp"
)
OVERRULED_TYPES = frozenset(_OVERRULED.split())
"""Types of models whose registered class goes before the one that a checkpoint names."""
NAMED_TOKENS = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"
)  # fmt: skip


class ReadTokenizer(NamedTuple):
    """A tokenizer, the texts of its named tokens, and its configuration.

    `unknown` is its class where the rules of that aren't known here: it was read as it stands.
    """

    tokenizer: tokenizers.Tokenizer
    named: Mapping[str, str]
    settings: Mapping[str, Any]
    unknown: str | None


def read_tokenizer(file: Path) -> ReadTokenizer:
    """Read a tokenizer by the rules of its class, which the files beside it name.

    Raises:
        ConfigurationError: a file is missing, or isn't what its name says.
        EngineUnavailableError: the `tokenizers` library is not installed.
    """
    library = import_tokenizers("tokenizer.json")
    if not file.is_file():
        raise ConfigurationError(f"no tokenizer at {file}")
    settings = read_json(file.with_name("tokenizer_config.json"))
    config = read_json(file.with_name("config.json"))
    try:
        text = file.read_text("utf-8")
        content = json.loads(text)
        name = find_class(settings, config, is_byte_level='"ByteLevel"' in text)
        rules = _RULES.get(name)
        fits = rules is None or rules.model == content["model"].get("type", "BPE")
        if rules is not None and fits:
            text = json.dumps(content | {"added_tokens": []} | rules.rewrite(content, settings))
        tokenizer: tokenizers.Tokenizer = library.Tokenizer.from_str(text)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens", False))
        stored = cast("list[dict[str, Any]]", content.get("added_tokens", []))
        named = _add_tokens(tokenizer, _Tokens(file.parent, settings, stored, rules or _Rules()))
        tokenizer.encode("a")
    except (ConfigurationError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # bare Exception for what it can't parse; its panics are none
        reason = f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"{file} is not a tokenizer file, or one beside it is damaged: {reason}"
        ) from error
    is_known = name in _PLAIN or (rules is not None and fits)
    return ReadTokenizer(tokenizer, named, settings, None if is_known else name)


def find_class(
    settings: Mapping[str, Any], config: Mapping[str, Any], *, is_byte_level: bool
) -> str:
    """Return the class that `AutoTokenizer` takes, without `Fast`.

    Args:
        settings: the content of `tokenizer_config.json`.
        config: the content of `config.json`.
        is_byte_level: whether the tokenizer's file works on bytes.
    """
    declared = settings.get("tokenizer_class") or config.get("tokenizer_class") or ""
    declared = str(declared).removesuffix("Fast")
    kind = config.get("model_type")
    registered = REGISTERED_CLASSES.get(kind) if isinstance(kind, str) else None
    if declared == "LlamaTokenizer" and is_byte_level and kind not in OVERRULED_TYPES:
        return _AS_STORED
    if registered is None or registered == declared:
        return declared or _AS_STORED
    if registered == _AS_STORED or not declared or kind in OVERRULED_TYPES:
        return registered
    return declared


def import_tokenizers(source: str) -> Any:
    """Import the `tokenizers` library, which reading `source` needs.

    Raises:
        EngineUnavailableError: it is not installed.
    """
    if find_spec("tokenizers") is None:
        raise EngineUnavailableError(
            f"reading {source} needs the tokenizers library; "
            'pip install "evalution-enginekit[tokenizers]"'
        )
    return import_module("tokenizers")


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one where there is no file.

    Raises:
        ConfigurationError: the file holds something else.
    """
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file} is not valid JSON: {error}; copy it again") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{file} is not a JSON object; copy it again")
    return cast("dict[str, Any]", content)


class _Tokens:
    """The tokens that configuration and class add, in the order in which Transformers adds them.

    `named` has those with a name such as `eos_token`.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        stored: Iterable[Mapping[str, Any]],
        rules: _Rules,
    ):
        decoder = settings.get("added_tokens_decoder")
        if decoder is None:  # as saved by versions before 4.34
            settings = {**settings, **read_json(folder / "special_tokens_map.json")}
            decoder = {entry["id"]: entry for entry in stored}
        added = {int(at): _parse_token(entry) for at, entry in decoder.items()}
        by_text = {_read_text(token): token for token in added.values()}
        extra: Any = settings.get("extra_special_tokens")
        extra = extra or settings.get("additional_special_tokens") or ()
        further = cast("dict[str, Any]", extra if isinstance(extra, dict) else {})
        if further or not extra:
            extra = rules.list_extra(settings)
        given: dict[str, Any] = {
            name: _parse_token(value)
            for name, value in settings.items()
            if name in NAMED_TOKENS
            or (name.endswith("_token") and isinstance(value, str | Mapping))
        }
        given = {**dict.fromkeys(NAMED_TOKENS), **rules.tokens, **given, **further}
        self.named: dict[str, Any] = {
            name: by_text.get(_read_text(token), token)
            for name, token in given.items()
            if token is not None
        }
        self.added = [added[at] for at in sorted(added)]
        self.extra = [_parse_token(token) for token in cast("Iterable[Any]", extra)]
        self.repeated = rules.repeats_tokens


def _add_tokens(tokenizer: tokenizers.Tokenizer, tokens: _Tokens) -> dict[str, str]:
    """Add what isn't there yet; return the texts of the named tokens."""
    from tokenizers import AddedToken  # noqa: PLC0415

    present = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    present |= {_read_text(token) for token in tokens.added}
    listed = [*tokens.named.values(), *tokens.extra]
    wanted = [*tokens.added, *(token for token in listed if _read_text(token) not in present)]
    texts = {name: _read_text(token) for name, token in tokens.named.items()}
    named = set(texts.values())
    for at, token in enumerate(wanted):
        if isinstance(token, str):
            wanted[at] = AddedToken(token, special=True)
        elif token.content in named:
            token.special = True
    cast("Any", tokenizer).add_tokens(wanted)
    if tokens.repeated:
        again = [AddedToken(_read_text(token), special=True) for token in listed]
        cast("Any", tokenizer).add_tokens(again)
    return texts


def _parse_token(value: Any) -> Any:
    """Return an `AddedToken` of what a configuration stores as a mapping; a text as it is."""
    if not isinstance(value, Mapping):
        return value
    from tokenizers import AddedToken  # noqa: PLC0415

    entry = cast("Mapping[str, Any]", value)
    return AddedToken(**{name: flag for name, flag in entry.items() if name in _FLAGS})


def _read_text(token: Any) -> str:
    return token if isinstance(token, str) else token.content


_MOST_EXTRA_IDS = 10_000
_FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
_SPACE = "\u2581"
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_NFC = {"type": "NFC"}
_DIGITS = {"type": "Digits", "individual_digits": True}
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_QWEN2 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN3_5 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BPE = {
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": "",
    "end_of_word_suffix": "",
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
_PIECES = {**_BPE, "continuing_subword_prefix": None, "end_of_word_suffix": None} | {
    "fuse_unk": True,
    "byte_fallback": True,
}
_TO_TEXT = [
    {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]

Content = Mapping[str, Any]


def _rewrite_bytes(
    *splits: Content, normalizer: Content | None = _NFC, use_regex: bool = False
) -> Callable[[Content, Content], dict[str, Any]]:
    """Return a rewriting to byte-level BPE on the pieces that `splits` leave."""

    def rewrite(content: Content, settings: Content) -> dict[str, Any]:
        prefix = bool(settings.get("add_prefix_space"))
        to_bytes = {**_BYTES, "add_prefix_space": prefix, "use_regex": use_regex}
        return {
            "model": {**content["model"], **_BPE},
            "normalizer": normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, to_bytes]},
            "decoder": _BYTES,
        }

    return rewrite


def _split(pattern: str) -> dict[str, Any]:
    found = {"type": "Split", "pattern": {"Regex": pattern}}
    return {**found, "behavior": "Isolated", "invert": False}


def _rewrite_neox(content: Content, settings: Content) -> dict[str, Any]:
    """Return the parts of `GPTNeoXTokenizer`, which drops the file's post-processor."""
    rewrite = _rewrite_bytes(use_regex=True)
    return {**rewrite(content, settings), "post_processor": None}


def _rewrite_llama(content: Content, settings: Content) -> dict[str, Any]:
    spaced = settings.get("add_prefix_space") in (None, True)
    scheme = "never" if not spaced else "always" if settings.get("legacy", False) else "first"
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if spaced else []
    return {
        "model": {**content["model"], **_PIECES},
        "normalizer": None,
        "pre_tokenizer": _metaspace(scheme, split=False),
        "decoder": {"type": "Sequence", "decoders": [*_TO_TEXT, *strip]},
    }


def _metaspace(scheme: str, *, split: bool) -> dict[str, Any]:
    found = {"type": "Metaspace", "replacement": _SPACE}
    return {**found, "prepend_scheme": scheme, "split": split}


def _rewrite_gemma(content: Content, settings: Content) -> dict[str, Any]:
    unknown = _read_text(_parse_token(settings.get("unk_token") or "<unk>"))
    split = {"type": "Split", "pattern": {"String": " "}}
    return {
        "model": {**content["model"], **_PIECES, "unk_token": unknown},
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
        "pre_tokenizer": {**split, "behavior": "MergedWithPrevious", "invert": False},
        "decoder": {"type": "Sequence", "decoders": _TO_TEXT},
    }


def _rewrite_t5(content: Content, settings: Content) -> dict[str, Any]:
    found: Content = content.get("normalizer") or {}
    parts = found.get("normalizers", [found])
    end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    texts, ends = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB"), "</s>"
    first, second = texts
    at = [text for text, _ in content["model"]["vocab"]].index(ends)
    splits = [{"type": "WhitespaceSplit"}, _metaspace("always", split=True)]
    return {
        "model": {**content["model"], "unk_id": 2, "byte_fallback": False},
        "normalizer": next((part for part in parts if part.get("type") == "Precompiled"), None),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
        "decoder": _metaspace("always", split=True),
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, end],
            "pair": [first, end, second, end],
            "special_tokens": {ends: {"id": ends, "ids": [at], "tokens": [ends]}},
        },
    }


@dataclass(frozen=True, slots=True)
class _Rules:
    """Rules of a class: the model's type, what it puts in place of the file's parts, its tokens.

    `repeats_tokens`: it adds its special tokens again, so that none strips blanks around it.
    """

    rewrite: Callable[[Content, Content], dict[str, Any]] = lambda content, _: dict(content)
    tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    model: str = "BPE"
    repeats_tokens: bool = False
    extra_ids: int | None = None

    def list_extra(self, settings: Content) -> list[str]:
        """Return the tokens that a class makes by their number; most make none."""
        count = 0 if self.extra_ids is None else settings.get("extra_ids", self.extra_ids)
        if type(count) is not int or count > _MOST_EXTRA_IDS:
            raise ConfigurationError(
                f"the tokenizer's configuration has extra_ids {count!r}; it must be a whole number "
                f"up to {_MOST_EXTRA_IDS:,}: copy the model's tokenizer again"
            )
        return [f"<extra_id_{at}>" for at in range(count)]


def _name(**tokens: str) -> dict[str, str]:
    return {f"{name}_token": text for name, text in tokens.items()}


_END = "<|endoftext|>"
_RULES = {
    "LlamaTokenizer": _Rules(_rewrite_llama, _name(bos="<s>", eos="</s>", unk="<unk>")),
    "GemmaTokenizer": _Rules(
        _rewrite_gemma,
        _name(bos="<bos>", eos="<eos>", unk="<unk>", pad="<pad>", mask="<mask>"),
    ),
    "Qwen2Tokenizer": _Rules(
        _rewrite_bytes(_split(_QWEN2)), _name(eos=_END, unk=_END, pad=_END), repeats_tokens=True
    ),
    "Qwen3_5Tokenizer": _Rules(
        _rewrite_bytes(_split(_QWEN3_5)), _name(eos=_END, unk=_END, pad=_END)
    ),
    "GPT2Tokenizer": _Rules(
        _rewrite_bytes(normalizer=None, use_regex=True), _name(bos=_END, eos=_END, unk=_END)
    ),
    "GPTNeoXTokenizer": _Rules(
        _rewrite_neox, _name(bos=_END, eos=_END, unk=_END, pad="<|padding|>")
    ),
    "CohereTokenizer": _Rules(
        _rewrite_bytes(_DIGITS, use_regex=True),
        _name(
            bos="<BOS_TOKEN>", eos="<|END_OF_TURN_TOKEN|>", unk="<UNK>", sep="<SEP>", pad="<PAD>",
            cls="<CLS>", mask="<MASK_TOKEN>",
        ),
        repeats_tokens=True,
    ),
    "T5Tokenizer": _Rules(
        _rewrite_t5, _name(eos="</s>", unk="<unk>", pad="<pad>"), model="Unigram", extra_ids=100
    ),
}  # fmt: skip
