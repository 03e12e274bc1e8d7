"""The tokenizer as the kit sees it, and one of bytes for tests and toys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from evalution_core import (
    ConfigurationError,
    EngineUnavailableError,
    InvalidRequestError,
    Model,
    TextCodec,
)
from evalution_core.redaction import redact_text
from evalution_enginekit.chat import (
    ChatTemplate,
    bind_template,
    choose_template,
    read_chat_template,
)
from evalution_enginekit.runtime import (
    describe_distribution,
    import_runtime,
    is_in_range,
    require_distribution,
)
from evalution_enginekit.tokenizer_classes import read_json, read_tokenizer

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

    @property
    def source(self) -> str:
        """The reader of its files, for the record: `transformers 5.23.0`, `tokenizer.json`."""
        ...

    @property
    def notice(self) -> str | None:
        """A sentence for the person who reads the scores: another reader gives other ids."""
        ...


def find_leading_ids(whole: Sequence[int], alone: Sequence[int]) -> tuple[int, ...]:
    """Return what stands before `alone` in `whole`: a text encoded with and without leading ids."""
    for at in range(len(whole) - len(alone) + 1):
        if list(whole[at : at + len(alone)]) == list(alone):
            return tuple(whole[:at])
    return ()


_LONG_TEXT = 1024
"""Characters that take some tenths of a millisecond to encode."""


def encode_text(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    """Encode a text without leading ids; while a long one is encoded, other threads run.

    The library keeps the interpreter's lock for a text, and lets it go for a batch.

    Raises:
        InvalidRequestError: the text has a character that the vocabulary lacks, and so has its
            token for those, or the library gives up on it.
    """
    try:
        if len(text) <= _LONG_TEXT:
            return tokenizer.encode(text, add_special_tokens=False).ids
        return tokenizer.encode_batch([text], add_special_tokens=False)[0].ids
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the border: a bare Exception, or a panic, which is none
        raise _refuse_text(error) from error


def _refuse_text(error: BaseException) -> InvalidRequestError:
    return InvalidRequestError(
        f"the model's tokenizer can't encode this text: {error}; copy the model's tokenizer again, "
        "or name another as tokenizer_path"
    )


def load_tokenizer(
    model: Model, folder: Path | None, declared_eos: Iterable[int] = ()
) -> Tokenizer:
    """Load the tokenizer of `model`, whose files are in `folder` or, without one, on the Hub.

    It is what `AutoTokenizer` of Transformers makes of the checkpoint. Where Transformers isn't
    installed, `tokenizer.json` is read by the same rules; where both readings are possible and
    differ, Transformers' is taken, and `notice` says so.

    The model declares the ends of a generation, whichever tokenizer it is read with: `eos_ids` has
    the ids that `folder` declares, or else those declared beside the tokenizer; for a model on the
    Hub, `declared_eos`. The chat template is rendered with `chat_template_kwargs`.

    Raises:
        ConfigurationError: no tokenizer is there, a file that describes it is broken, or it has no
            chat template for the variables.
        EngineUnavailableError: the loader's library is not installed.
    """
    declared = declared_eos if folder is None else read_declared_eos(folder)
    if not (model.tokenizer is None or isinstance(model.tokenizer, str)):
        return find_given_tokenizer(model, model.tokenizer, declared)
    source = find_tokenizer_name(model) or str(folder or model.path)
    path = Path(source).expanduser()
    file = path if path.is_file() else path / "tokenizer.json"
    if file.is_file():
        declared = declared or read_declared_eos(file.parent)
        source = str(file.parent if file.name == "tokenizer.json" else file)
    elif (
        path.is_dir()
        and not any(any(path.glob(name)) for name in _TOKENIZER_FILES)
        and ("gguf_file" not in model.tokenizer_kwargs)
    ):
        raise ConfigurationError(
            f"no tokenizer in {path}: expected tokenizer.json; set tokenizer_path to a folder "
            "that has one"
        )
    tokenizer = _read(model, source, file if file.is_file() else None, declared)
    tokenizer.chat_template = bind_template(model, tokenizer.chat_template)
    return tokenizer


def find_given_tokenizer(model: Model, given: Any, declared_eos: Iterable[int]) -> Tokenizer:
    """Return a tokenizer of the caller's: an object of the kit's protocol, or a Transformers one.

    It isn't changed; variables of the chat template are bound beside it. `declared_eos` has the
    ids that the model says end a generation, which the kit's protocol has already.

    Raises:
        ConfigurationError: it has no chat template for `chat_template_kwargs`.
    """
    if hasattr(given, "leading_ids"):
        return bind_tokenizer(model, given)

    tokenizer = HFTokenizer(given, declared_eos, f"given {type(given).__name__}")
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
        declared = read_json(file).get("eos_token_id")
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
    """A `tokenizer.json` with what lies beside it, read without Transformers by the same rules.

    `declared_eos` are the ids that the model says end a generation, beside the tokenizer's own;
    None: those that the files beside `file` declare.

    Raises:
        ConfigurationError: the file is missing or not a tokenizer.
        EngineUnavailableError: the `tokenizers` library is not installed.
    """

    def __init__(self, file: Path, declared_eos: Iterable[int] | None = None):
        self._file = file
        read = read_tokenizer(file)
        self._tokenizer = tokenizer = read.tokenizer
        self.leading_ids = find_leading_ids(
            tokenizer.encode("a", add_special_tokens=True).ids,
            tokenizer.encode("a", add_special_tokens=False).ids,
        )
        self.bos_id = self._find_id(read.named.get("bos_token"))
        self.eos_id = self._find_id(read.named.get("eos_token"))
        own = () if self.eos_id is None else (self.eos_id,)
        declared = read_declared_eos(file.parent) if declared_eos is None else declared_eos
        self.eos_ids = frozenset((*own, *declared))
        self.special_ids = frozenset(
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        )
        self.vocabulary_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.chat_template = read_chat_template(file, read.settings, read.named)
        self.source = file.name
        self.notice = None
        if read.unknown is not None:
            self.notice = (
                f"{file} was read as it stands, and its class {read.unknown} may have rules of its "
                f"own, by which the ids would be others; install transformers to read it by them"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"chat_template": self.chat_template, "notice": self.notice}
        return type(self), (self._file, self.eos_ids), state

    def encode(self, text: str) -> list[int]:
        return encode_text(self._tokenizer, text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def _find_id(self, token: str | None) -> int | None:
        return None if token is None else self._tokenizer.token_to_id(token)


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
        self.source = tokenizer.source
        self.notice = tokenizer.notice
        self.encode = tokenizer.encode
        self.decode = tokenizer.decode


TRANSFORMERS = ">=4.57,<6"
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "tekken*", "*.model")


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


def _read(
    model: Model, source: str, file: Path | None, declared_eos: Iterable[int]
) -> HFTokenizer | TokenizerFile:
    """Return the tokenizer of a folder, a file or a Hub id, with the difference of its readings."""
    if model.trust_remote_code or model.tokenizer_kwargs:
        return _load_hf_tokenizer(model, source, declared_eos)
    alone = None if file is None else TokenizerFile(file, declared_eos)
    if alone is not None and (source == str(file) or not _has_transformers()):
        return alone
    try:
        tokenizer = _load_hf_tokenizer(model, source, declared_eos)
    except (ConfigurationError, EngineUnavailableError) as error:
        if alone is None:
            if Path(source).is_dir():
                raise type(error)(
                    f"{source} has no tokenizer.json, and what else is there of a tokenizer is "
                    f"read by Transformers: {error}"
                ) from error
            raise
        alone.notice = f"{file} was read without Transformers, which refuses it: {error}"
        return alone
    if (
        alone is None
        and (cached := find_cached_file(source, "tokenizer.json", model.revision)) is not None
    ):
        alone = TokenizerFile(cached, declared_eos)
    if alone is not None and (difference := find_difference(tokenizer, alone)) is not None:
        tokenizer.notice = (
            f"the tokenizer of {source} was read by {tokenizer.source}; an engine without "
            f"Transformers reads it otherwise: {difference}"
        )
    return tokenizer


def _has_transformers() -> bool:
    try:
        return is_in_range(require_distribution("transformers", install="")[1], TRANSFORMERS)
    except EngineUnavailableError:
        return False


def find_cached_file(
    repository: str, name: str, revision: str | None, folder: str | None = None
) -> Path | None:
    """Return a file of a model in the Hub's cache, or in `folder` in its place, if it is there."""
    if Path(repository).exists():
        return None
    import huggingface_hub  # noqa: PLC0415 - it comes with Transformers

    found: object = huggingface_hub.try_to_load_from_cache(
        repository, name, revision=revision, cache_dir=folder
    )
    return Path(found) if isinstance(found, str) else None


def _load_hf_tokenizer(model: Model, path: str, declared_eos: Iterable[int]) -> HFTokenizer:
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
        return HFTokenizer(loaded, declared_eos, describe_distribution("transformers"))
    except ImportError as error:
        raise EngineUnavailableError(
            f"the tokenizer of {path!r} needs more: {redact_text(str(error))}"
        ) from error
    except Exception as error:  # the border: classes raise what their files make them raise
        raise ConfigurationError(
            f"no tokenizer could be loaded from {path!r}: {redact_text(str(error))}"
        ) from error


_PROBES = (
    "The quick brown fox", " the cat", "a  b   c", "12345 and 1 2 34 567", "don't DON'T we'll",
    "\n\n\ta\n b  ", "Grüße, Gru\u0308ße", "東京 и Москва", "\ufb01ne \u00bd \u2460",
    "🙂 f(x): x**2 # 3.14e-10", "", " ",
)  # fmt: skip
"""Texts on which readings may part: blanks, digits, contractions, accents, scripts, code."""


def find_difference(left: Tokenizer, right: Tokenizer) -> str | None:
    """Return the first thing on which two readings of one tokenizer part; None if there is none.

    They are compared on probe texts, alone and around each of up to 64 special tokens, and by
    what stands before a text, ends a generation, is no text, and renders chat.
    """
    specials = sorted(left.special_ids)[:64]
    spelled = [left.decode([at], skip_special_tokens=False) for at in specials]
    for text in (*_PROBES, *(f"a {token} b{token}c" for token in spelled)):
        ours, theirs = _describe_encoding(left, text), _describe_encoding(right, text)
        if ours != theirs:
            return f"{text!r} is {theirs} there and {ours} here"
    for name, ours, theirs in (
        ("leading_ids", left.leading_ids, right.leading_ids),
        ("bos_id", left.bos_id, right.bos_id),
        ("eos_id", left.eos_id, right.eos_id),
        ("eos_ids", sorted(left.eos_ids), sorted(right.eos_ids)),
        ("special_ids", sorted(left.special_ids), sorted(right.special_ids)),
    ):
        if ours != theirs:
            return f"{name} is {theirs} there and {ours} here"
    return _find_template_difference(left.chat_template, right.chat_template)


def _describe_encoding(tokenizer: Tokenizer, text: str) -> str:
    try:
        token_ids = tokenizer.encode(text)
        return f"{token_ids} (as text {tokenizer.decode(token_ids)!r})"
    except InvalidRequestError as error:
        return f"an error ({error})"


def _find_template_difference(left: ChatTemplate | None, right: ChatTemplate | None) -> str | None:
    if left is None or right is None:
        return None if left is right else "one of them has a chat template, the other has none"
    if (left.source, left.tool_source) != (right.source, right.tool_source):
        return "their chat templates are different texts"
    for name in sorted({*left.special_tokens, *right.special_tokens}):
        if left.special_tokens.get(name) != right.special_tokens.get(name):
            return f"their chat templates print another {name}"
    return None


class HFTokenizer:
    """The kit's tokenizer on a Transformers one; `eos_ids` adds what the model declares."""

    def __init__(
        self,
        tokenizer: TransformersTokenizer,
        declared_eos: Iterable[int] = (),
        source: str = "given",
    ) -> None:
        self._tokenizer = tokenizer
        self.source = source
        self.notice: str | None = None
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
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the border: as in `encode_text`
            raise _refuse_text(error) from error

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(
            list(token_ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )


def _convert_chat_template(tokenizer: TransformersTokenizer) -> ChatTemplate | None:
    specials = tokenizer.special_tokens_map.items()
    named = {name: text for name, text in specials if isinstance(text, str)}
    return choose_template(tokenizer.chat_template, named)
