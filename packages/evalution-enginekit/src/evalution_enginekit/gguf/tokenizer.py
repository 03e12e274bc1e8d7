"""The tokenizer of a GGUF file, for runtimes that have none of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from evalution_core import ConfigurationError, Model
from evalution_enginekit.chat import ChatTemplate, bind_template
from evalution_enginekit.gguf.file import GGUFFile
from evalution_enginekit.tokenizer import (
    AdaptedTokenizer,
    encode_text,
    find_tokenizer_name,
    load_tokenizer,
)
from evalution_enginekit.tokenizer_classes import import_tokenizers

if TYPE_CHECKING:
    import tokenizers

    from evalution_enginekit.tokenizer import Tokenizer


_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_SPACE = "\u2581"
_INSTEAD = "set tokenizer_path to the matching Hugging Face tokenizer"
_LONGEST_TOKEN = 1024
"""Characters of a SentencePiece token, which is cut in every place: many times those of any."""
_ENDING_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SENTENCE_PIECE_IDS = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
"""Ids of a SentencePiece vocabulary that declares none, as in llama.cpp."""
_TEMPLATE_NAMES = {"bos_token": "bos_token_id", "eos_token": "eos_token_id"}
_ENDS_OF_TURN = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<turn|>",
        "<|return|>",
        "<|call|>",
        "<EOT>",
    }
)
"""Names of control tokens that end a generation even if the file declares another id alone."""


def load_gguf_tokenizer(model: Model, file: GGUFFile, *, ends_by_name: bool = True) -> Tokenizer:
    """Load the tokenizer that `model` names, else the one of its GGUF file.

    With a named one, generations end at the file's end tokens too, and with `ends_by_name` at those
    of `find_named_ends`. Chat is rendered with its
    template, as on every engine, not with the file's.

    Raises:
        ConfigurationError: there is no tokenizer, it is of a kind that isn't read, it has more
            tokens than the model, or no chat template for the model's variables.
        EngineUnavailableError: the `tokenizers` library, or Transformers, is not installed.
    """
    if model.tokenizer is None and find_tokenizer_name(model) is None:
        tokenizer = GGUFTokenizer(file, ends_by_name=ends_by_name)
        tokenizer.chat_template = bind_template(model, tokenizer.chat_template)
        return tokenizer
    loaded = load_tokenizer(model, file.path.parent)
    return add_end_ids(loaded, file, ends_by_name=ends_by_name)


def add_end_ids(tokenizer: Tokenizer, file: GGUFFile, *, ends_by_name: bool = True) -> Tokenizer:
    """Return the tokenizer with the end tokens of the file added to its own.

    Raises:
        ConfigurationError: it has more tokens than the model.
    """
    rows = len(_read_strings(file, "tokens"))
    if rows and tokenizer.vocabulary_size > rows:
        raise ConfigurationError(
            f"the tokenizer has {tokenizer.vocabulary_size} tokens and the model in "
            f"{file.path.name} {rows}: it is another model's"
        )
    ends = find_end_ids(file, by_name=ends_by_name)
    return AdaptedTokenizer(tokenizer, tokenizer.chat_template, ends)


def read_chat_template(file: GGUFFile) -> ChatTemplate | None:
    """Return the file's chat template, with the one for tools and the tokens that they print."""
    if file.chat_template is None:
        return None
    tokens = _read_strings(file, "tokens")
    found = {name: _find_id(file, key) for name, key in _TEMPLATE_NAMES.items()}
    specials = {name: tokens[at] for name, at in found.items() if at is not None}
    tools = file.metadata.get("tokenizer.chat_template.tool_use")
    with_tools = tools if isinstance(tools, str) else None
    return ChatTemplate(file.chat_template, specials, tool_source=with_tools)


def find_end_ids(file: GGUFFile, *, by_name: bool) -> frozenset[int]:
    """Return the ids that end a generation: declared ones, and with `by_name` ends of turn."""
    declared = {_find_id(file, key) for key in _ENDING_KEYS} - {None}
    named = find_named_ends(file).values() if by_name else ()
    return frozenset(cast("set[int]", declared)).union(named)


def find_named_ends(file: GGUFFile) -> dict[str, int]:
    """Return control tokens that end a turn by their names, and that the file doesn't declare."""
    declared = find_end_ids(file, by_name=False)
    tokens = enumerate(zip(_read_strings(file, "tokens"), _read_token_types(file), strict=True))
    return {
        token: token_id
        for token_id, (token, kind) in tokens
        if kind == _CONTROL and token in _ENDS_OF_TURN and token_id not in declared
    }


class GGUFTokenizer:
    """Byte-level BPE and SentencePiece vocabularies of GGUF files, on the `tokenizers` library.

    Ids are those that llama.cpp gives, by the splitting rules that the file names.

    Raises:
        ConfigurationError: the vocabulary is of another kind, or damaged.
        EngineUnavailableError: the `tokenizers` library is not installed.
    """

    def __init__(self, file: GGUFFile, *, ends_by_name: bool = True):
        self.source = "GGUF file"
        self.notice: str | None = None
        self._file = file
        tokens, types = _read_strings(file, "tokens"), _read_token_types(file)
        self._tokenizer, adds_bos = _build(file, tokens, types)
        self.bos_id = _find_id(file, "bos_token_id")
        self.eos_id = _find_id(file, "eos_token_id")
        adds_bos = bool(_read_value(file, "add_bos_token", adds_bos))
        self.leading_ids = (self.bos_id,) if adds_bos and self.bos_id is not None else ()
        self.eos_ids = find_end_ids(file, by_name=ends_by_name)
        self.special_ids = frozenset(
            token_id for token_id, kind in enumerate(types) if kind in (_UNKNOWN, _CONTROL)
        )
        self.vocabulary_size = len(tokens)
        self.chat_template = read_chat_template(file)

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"chat_template": self.chat_template, "eos_ids": self.eos_ids}
        return type(self), (self._file,), state

    def encode(self, text: str) -> list[int]:
        return encode_text(self._tokenizer, text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)


def _build(
    file: GGUFFile, tokens: list[str], types: list[int]
) -> tuple[tokenizers.Tokenizer, bool]:
    """Return the tokenizer, and whether BOS leads a text if the file doesn't say."""
    import_tokenizers("a GGUF file's tokenizer")
    kind = _read_value(file, "model", None)
    if not tokens:
        raise ConfigurationError(f"{file.path.name} holds no tokenizer; {_INSTEAD}")
    vocabulary = {token: at for at, token in enumerate(tokens) if types[at] != _UNUSED}
    try:
        if kind == "gpt2":
            built, adds_bos = _build_byte_level(file, vocabulary)
        elif kind == "llama":
            built, adds_bos = _build_sentence_piece(file, tokens, vocabulary), True
        else:
            raise ConfigurationError(
                f"{file.path.name} has a tokenizer of the kind {kind!r}; byte-level BPE (gpt2) and "
                f"SentencePiece (llama) are read: {_INSTEAD}"
            )
    except (ConfigurationError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises a bare Exception, and panics, which is none
        raise ConfigurationError(
            f"the tokenizer in {file.path.name} can't be built ({error}); {_INSTEAD}"
        ) from error
    _add_tokens(built, tokens, types)
    return built, adds_bos


def _build_byte_level(
    file: GGUFFile, vocabulary: dict[str, int]
) -> tuple[tokenizers.Tokenizer, bool]:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415

    name = _read_value(file, "pre", "default")
    rules = PRE_TOKENIZERS.get(name)
    if rules is None:
        raise ConfigurationError(
            f"{file.path.name} splits text by the rules {name!r}, which aren't known here (known: "
            f"{', '.join(sorted(PRE_TOKENIZERS))}); {_INSTEAD}"
        )
    parted = [merge.partition(" ") for merge in _read_strings(file, "merges")]
    merges = [(left, right) for left, _, right in parted]
    built = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=rules.ignore_merges))
    splits = [pre_tokenizers.Split(Regex(each), "isolated") for each in rules.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    built.decoder = decoders.ByteLevel()
    return built, rules.adds_bos


def _build_sentence_piece(
    file: GGUFFile, tokens: list[str], vocabulary: dict[str, int]
) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers  # noqa: PLC0415

    scores = cast("list[float]", _read_value(file, "scores", []))
    if len(scores) != len(tokens):
        raise ConfigurationError(
            f"{file.path.name} has {len(tokens)} tokens and {len(scores)} scores for them; "
            f"{_INSTEAD}"
        )
    if (longest := max(map(len, vocabulary), default=0)) > _LONGEST_TOKEN:
        raise ConfigurationError(
            f"{file.path.name} has a token of {longest:,} characters, and no more than "
            f"{_LONGEST_TOKEN:,} are read: the file is damaged; download it again, or {_INSTEAD}"
        )
    unknown = _find_id(file, "unknown_token_id")
    built = Tokenizer(
        models.BPE(
            vocabulary,
            _rank_merges(vocabulary, scores),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaced = bool(_read_value(file, "add_space_prefix", True))
    escaped = normalizers.Replace(" ", _SPACE)
    # It runs on each stretch between special tokens, which gets the space, as in llama.cpp.
    lead = [normalizers.Prepend(_SPACE)] if spaced else []
    built.normalizer = normalizers.Sequence([*lead, escaped])
    strip = [decoders.Strip(" ", 1, 0)] if spaced else []
    built.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return built


def _rank_merges(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Return every pair of tokens whose join is a token, best score of the join first."""
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, at in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-scores[at], vocabulary[left], vocabulary[right], left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _add_tokens(built: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    from tokenizers import AddedToken  # noqa: PLC0415

    def list_added(kinds: tuple[int, ...], *, special: bool) -> list[AddedToken]:
        return [
            AddedToken(token, special=special, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in kinds
        ]

    open_ended = cast(Any, built)
    open_ended.add_special_tokens(list_added((_UNKNOWN, _CONTROL), special=True))
    open_ended.add_tokens(list_added((_USER_DEFINED,), special=False))


def _read_value(file: GGUFFile, key: str, default: Any) -> Any:
    return file.metadata.get(f"tokenizer.ggml.{key}", default)


def _read_strings(file: GGUFFile, key: str) -> list[str]:
    found = _read_value(file, key, [])
    return cast("list[str]", found) if isinstance(found, list) else []


def _read_token_types(file: GGUFFile) -> list[int]:
    """Return the kind of each token; all are plain if the file doesn't say."""
    count = len(_read_strings(file, "tokens"))
    found = _read_value(file, "token_type", [])
    if not isinstance(found, list):
        raise ConfigurationError(
            f"{file.path.name} has no list as the kinds of its tokens (tokenizer.ggml.token_type): "
            "the file is damaged; download it again, or convert the model again"
        )
    kinds = cast("list[int]", found)
    return kinds if len(kinds) == count else [_NORMAL] * count


def _find_id(file: GGUFFile, key: str) -> int | None:
    usual = _SENTENCE_PIECE_IDS.get(key) if _read_value(file, "model", None) == "llama" else None
    found = _read_value(file, key, usual)
    count = len(_read_strings(file, "tokens"))
    return found if isinstance(found, int) and 0 <= found < count else None


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
    """`patterns` are applied one after the other, each to the pieces that the one before left.

    `ignore_merges`: a piece that is a token as a whole becomes that token in spite of the merges.
    `adds_bos`: whether BOS leads a text if the file doesn't say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False


_LLAMA3_RULES = PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True)
_QWEN2_RULES = PreTokenizer((_QWEN2,))
_GPT2_RULES = PreTokenizer((_GPT2,))
_SINGLE_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_GPT4O_RULES = PreTokenizer((_GPT4O,))
_DEEPSEEK3_RULES = PreTokenizer(_DEEPSEEK3)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0", "lfm2"), _LLAMA3_RULES
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), PreTokenizer((_LLAMA3,))),
    **dict.fromkeys(("glm4", "glm5"), PreTokenizer((_LLAMA3,), ignore_merges=True)),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "solar-open", "grok-2"),
        _QWEN2_RULES,
    ),
    "qwen35": PreTokenizer((_QWEN35,)),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "jais", "exaone4", "trillion"), _GPT2_RULES),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        _SINGLE_DIGITS,
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), _GPT4O_RULES),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, adds_bos=True),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3_RULES),
}
