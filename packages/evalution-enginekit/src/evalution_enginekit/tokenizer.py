"""The tokenizer as the kit sees it, and one of bytes for tests and toys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from evalution_core import ConfigurationError, EngineUnavailableError, Model, TextCodec
from evalution_enginekit.chat import SPECIAL_TOKENS, ChatTemplate, bind_template
from evalution_enginekit.runtime import import_runtime

if TYPE_CHECKING:
    import tokenizers


@runtime_checkable
class Tokenizer(TextCodec, Protocol):
    """A `TextCodec` with what generation and chat need. Safe to call from several threads."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """All ids that end a generation: `eos_id`, end of turn, and what the model declares."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that are not text: absent from a completion's text."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id."""
        ...

    @property
    def chat_template(self) -> ChatTemplate | None: ...


def find_leading_ids(whole: Sequence[int], alone: Sequence[int]) -> tuple[int, ...]:
    """Return what stands before `alone` in `whole`: a text encoded with and without leading ids."""
    for at in range(len(whole) - len(alone) + 1):
        if list(whole[at : at + len(alone)]) == list(alone):
            return tuple(whole[:at])
    return ()


_SPECIALS = ("<bos>", "<eos>", "<user>", "<assistant>")
_BYTES = 256
_PATTERN = re.compile("|".join(map(re.escape, _SPECIALS)))
_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class ByteTokenizer:
    """UTF-8 bytes as ids 0 to 255, then `<bos>`, `<eos>`, `<user>`, `<assistant>`.

    Args:
        adds_bos: whether `<bos>` leads every text.
        has_template: whether it can render chat.
    """

    def __init__(self, *, adds_bos: bool = True, has_template: bool = True):
        self.leading_ids: tuple[int, ...] = (_BYTES,) if adds_bos else ()
        self.bos_id: int | None = _BYTES
        self.eos_id: int | None = _BYTES + 1
        self.eos_ids = frozenset({_BYTES + 1})
        self.special_ids = frozenset(range(_BYTES, _BYTES + len(_SPECIALS)))
        self.vocabulary_size = _BYTES + len(_SPECIALS)
        self.chat_template = ChatTemplate(_TEMPLATE) if has_template else None

    def encode(self, text: str) -> list[int]:
        token_ids: list[int] = []
        at = 0
        for match in _PATTERN.finditer(text):
            token_ids.extend(text[at : match.start()].encode())
            token_ids.append(_BYTES + _SPECIALS.index(match[0]))
            at = match.end()
        token_ids.extend(text[at:].encode())
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        spelled = bytearray()
        for token_id in token_ids:
            if token_id < _BYTES:
                spelled.append(token_id)
            elif not skip_special_tokens:
                spelled.extend(_SPECIALS[token_id - _BYTES].encode())
        return spelled.decode("utf-8", errors="replace")


def load_tokenizer(model: Model, folder: Path) -> Tokenizer:
    """The tokenizer of `model`, whose files are in `folder` unless `tokenizer_path` says otherwise.

    A `tokenizer.json` is read with the `tokenizers` library alone. Anything else, and any model
    with `trust_remote_code` or `tokenizer_kwargs`, goes through Transformers, the kit's `[hf]`.
    What ends a generation is the model's to declare, whichever tokenizer it is read with: its
    `eos_ids` have the ids that `folder` declares, or else those declared beside the tokenizer.

    Its chat template is rendered with `chat_template_kwargs`.

    Raises:
        ConfigurationError: no tokenizer is there, a file that describes it is broken, or it has no
            chat template for the variables.
        EngineUnavailableError: the loader's library is not installed.
    """
    if not (model.tokenizer is None or isinstance(model.tokenizer, str)):
        return find_given_tokenizer(model, model.tokenizer, lambda: read_declared_eos(folder))
    named = find_tokenizer_name(model)
    path = Path(named) if named else folder
    file = path / "tokenizer.json" if path.is_dir() else path
    declared = read_declared_eos(folder) or read_declared_eos(file.parent)
    plain = not model.trust_remote_code and not model.tokenizer_kwargs
    if file.name.endswith(".json") and file.is_file() and plain:
        tokenizer = TokenizerFile(file, declared)
        tokenizer.chat_template = bind_template(model, tokenizer.chat_template)
        return tokenizer
    if named is None and not any(path.glob("tokenizer*")) and not any(path.glob("vocab*")):
        raise ConfigurationError(
            f"no tokenizer in {path}: expected tokenizer.json; set tokenizer_path to a folder "
            "that has one"
        )

    return load_hf_tokenizer(model, str(path), declared)


def checkpoint_tokenizer(
    model: Model, folder: Path | None, declared_eos: Iterable[int] = ()
) -> Tokenizer:
    """The tokenizer of `model`, whose files are in `folder` or, without one, on the Hub.

    `declared_eos` are the ids that a model of the Hub says end a generation.

    Raises:
        ConfigurationError: none can be loaded.
        EngineUnavailableError: the loader's library is not installed.
    """
    if folder is not None:
        return load_tokenizer(model, folder)
    if not (model.tokenizer is None or isinstance(model.tokenizer, str)):
        return find_given_tokenizer(model, model.tokenizer, lambda: declared_eos)

    return load_hf_tokenizer(model, find_tokenizer_name(model) or str(model.path), declared_eos)


def find_given_tokenizer(
    model: Model, given: Any, declared_eos: Callable[[], Iterable[int]]
) -> Tokenizer:
    """A tokenizer object of the caller's: one of the kit's protocol, or a Transformers one.

    It isn't changed; variables of the chat template are bound beside it. `declared_eos` has the
    ids that the model says end a generation, which the kit's protocol has already.

    Raises:
        ConfigurationError: it has no chat template for `chat_template_kwargs`.
    """
    if hasattr(given, "leading_ids"):
        return bind_tokenizer(model, given)

    tokenizer = HFTokenizer(given, declared_eos())
    tokenizer.chat_template = bind_template(model, tokenizer.chat_template)
    return tokenizer


def bind_tokenizer(model: Model, tokenizer: Tokenizer) -> Tokenizer:
    """`tokenizer`, unchanged, or beside it one that renders with `model.chat_template_kwargs`.

    Raises:
        ConfigurationError: it has no chat template that reads these variables.
        EngineUnavailableError: Jinja is not installed.
    """
    if not model.chat_template_kwargs:
        return tokenizer
    return AdaptedTokenizer(tokenizer, bind_template(model, tokenizer.chat_template))


def find_tokenizer_name(model: Model) -> str | None:
    """The path or Hub name that replaces the tokenizer beside the weights; None: nothing does."""
    name = model.tokenizer if isinstance(model.tokenizer, str) else None
    return name or model.tokenizer_path


def read_declared_eos(folder: Path) -> frozenset[int]:
    """The ids that a model's folder says end a generation; empty where it says nothing.

    `generation_config.json` goes before `config.json`, as in Transformers.

    Raises:
        ConfigurationError: one of them isn't a JSON object, or declares something else than ids.
    """
    for file in (folder / "generation_config.json", folder / "config.json"):
        declared = _read_json(file).get("eos_token_id")
        if declared is not None:
            return parse_eos_ids(declared, str(file))
    return frozenset()


def parse_eos_ids(declared: object, source: str = "the checkpoint") -> frozenset[int]:
    """Return the token ids of an `eos_token_id` as checkpoints declare it: one id, a list, or None.

    Raises:
        ConfigurationError: it is something else; the message names `source`.
    """
    if declared is None:
        return frozenset()
    ids = cast("list[Any]", declared if isinstance(declared, list) else [declared])
    if not all(type(token_id) is int for token_id in ids):
        raise ConfigurationError(
            f"{source} has eos_token_id {declared!r}; it must be a token id or a list of them"
        )
    return frozenset(ids)


class TokenizerFile:
    """A `tokenizer.json` with what lies beside it: special tokens and template.

    `declared_eos` are the ids that the model says end a generation, beside the tokenizer's own;
    None: those that the files beside `file` declare.

    Raises:
        ConfigurationError: the file is missing or not a tokenizer.
        EngineUnavailableError: the `tokenizers` library is not installed.
    """

    def __init__(self, file: Path, declared_eos: Iterable[int] | None = None):
        self._file = file
        self._tokenizer = tokenizer = _load_file(file)
        config = _read_json(file.with_name("tokenizer_config.json"))
        specials = {
            name: text for name in SPECIAL_TOKENS if (text := _read_token_text(config.get(name)))
        }
        self.leading_ids = find_leading_ids(
            tokenizer.encode("a", add_special_tokens=True).ids,
            tokenizer.encode("a", add_special_tokens=False).ids,
        )
        self.bos_id = self._find_id(specials.get("bos_token"))
        self.eos_id = self._find_id(specials.get("eos_token"))
        own = () if self.eos_id is None else (self.eos_id,)
        declared = read_declared_eos(file.parent) if declared_eos is None else declared_eos
        self.eos_ids = frozenset((*own, *declared))
        self.special_ids = frozenset(
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        )
        self.vocabulary_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.chat_template = _read_chat_template(file, config, specials)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._file, self.eos_ids), {"chat_template": self.chat_template}

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def _find_id(self, token: str | None) -> int | None:
        return None if token is None else self._tokenizer.token_to_id(token)


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


def _load_file(file: Path) -> tokenizers.Tokenizer:
    tokenizers = import_tokenizers("tokenizer.json")

    if not file.is_file():
        raise ConfigurationError(f"no tokenizer at {file}")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for a file it can't parse
        raise ConfigurationError(f"{file} is not a tokenizer file: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_chat_template(
    file: Path, config: Mapping[str, Any], specials: Mapping[str, str]
) -> ChatTemplate | None:
    beside = file.with_name("chat_template.jinja")
    source: Any = beside.read_text("utf-8") if beside.is_file() else config.get("chat_template")
    if isinstance(source, list):
        named = cast("list[dict[str, str]]", source)
        source = {entry["name"]: entry["template"] for entry in named}.get("default")
    return ChatTemplate(source, specials) if isinstance(source, str) else None


def _read_token_text(value: Any) -> str | None:
    """A special token's text, which configurations store bare or as `{"content": …}`."""
    if isinstance(value, Mapping):
        return str(cast("Mapping[str, Any]", value)["content"])
    return value if isinstance(value, str) else None


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{file} is not a JSON object")
    return cast("dict[str, Any]", content)


class AdaptedTokenizer:
    """A tokenizer with another chat template, or with further ids that end a generation."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        end_ids: Iterable[int] = (),
    ):
        self.leading_ids = tokenizer.leading_ids
        self.bos_id = tokenizer.bos_id
        self.eos_id = tokenizer.eos_id
        self.eos_ids = tokenizer.eos_ids.union(end_ids)
        self.special_ids = tokenizer.special_ids
        self.vocabulary_size = tokenizer.vocabulary_size
        self.chat_template = chat_template
        self.encode = tokenizer.encode
        self.decode = tokenizer.decode


TRANSFORMERS = ">=4.57,<6"


class AddedToken(Protocol):
    special: bool


class TransformersTokenizer(Protocol):
    """The calls of `PreTrainedTokenizerBase` that the kit makes."""

    bos_token_id: int | None
    eos_token_id: int | None
    all_special_ids: list[int]
    chat_template: str | Mapping[str, str] | None
    special_tokens_map: Mapping[str, Any]
    added_tokens_decoder: Mapping[int, AddedToken]

    def get_vocab(self) -> Mapping[str, int]: ...
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        clean_up_tokenization_spaces: bool,
    ) -> str: ...


def load_hf_tokenizer(model: Model, path: str, declared_eos: Iterable[int] = ()) -> HFTokenizer:
    """`AutoTokenizer.from_pretrained`, with the model's revision, trust and extra arguments.

    `declared_eos` are the ids that the model says end a generation.

    Raises:
        EngineUnavailableError: Transformers is missing or too old.
        ConfigurationError: nothing loadable is there, or no chat template for the variables.
    """
    transformers = import_runtime(
        "transformers",
        TRANSFORMERS,
        install='pip install "evalution-enginekit[hf]"',
    )
    try:
        loaded = transformers.AutoTokenizer.from_pretrained(
            path,
            revision=model.revision,
            trust_remote_code=model.trust_remote_code,
            **model.tokenizer_kwargs,
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"no tokenizer could be loaded from {path!r}: {error}") from error
    tokenizer = HFTokenizer(loaded, declared_eos)
    tokenizer.chat_template = bind_template(model, tokenizer.chat_template)
    return tokenizer


class HFTokenizer:
    """The kit's tokenizer on a Transformers one; `eos_ids` adds what the model declares."""

    def __init__(self, tokenizer: TransformersTokenizer, declared_eos: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self.leading_ids = find_leading_ids(
            tokenizer.encode("a", add_special_tokens=True),
            tokenizer.encode("a", add_special_tokens=False),
        )
        self.bos_id = tokenizer.bos_token_id
        self.eos_id = tokenizer.eos_token_id
        own = () if self.eos_id is None else (self.eos_id,)
        self.eos_ids = frozenset((*own, *declared_eos))
        # all_special_ids has only the tokens that a name such as eos_token refers to.
        added = tokenizer.added_tokens_decoder.items()
        unnamed = (token_id for token_id, token in added if token.special)
        self.special_ids = frozenset((*tokenizer.all_special_ids, *unnamed))
        # Ids may have gaps, so the number of tokens is no bound of them.
        self.vocabulary_size = max(tokenizer.get_vocab().values()) + 1
        self.chat_template = _convert_chat_template(tokenizer)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(
            list(token_ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )


def _convert_chat_template(tokenizer: TransformersTokenizer) -> ChatTemplate | None:
    source = tokenizer.chat_template
    if isinstance(source, Mapping):
        source = source.get("default")
    if not isinstance(source, str):
        return None
    specials = tokenizer.special_tokens_map.items()
    return ChatTemplate(source, {name: text for name, text in specials if isinstance(text, str)})
