"""A Hugging Face tokenizer, through Transformers (extra `[hf]`; no torch)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from evalution_core import ConfigurationError, Model
from evalution_enginekit.chat import ChatTemplate, bound_template
from evalution_enginekit.runtime import import_runtime
from evalution_enginekit.tokenizer import ids_before

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
    tokenizer.chat_template = bound_template(model, tokenizer.chat_template)
    return tokenizer


class HFTokenizer:
    """The kit's tokenizer on a Transformers one; `eos_ids` adds what the model declares."""

    def __init__(self, tokenizer: TransformersTokenizer, declared_eos: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self.leading_ids = ids_before(
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
        self.chat_template = _chat_template(tokenizer)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(
            list(token_ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )


def _chat_template(tokenizer: TransformersTokenizer) -> ChatTemplate | None:
    source = tokenizer.chat_template
    if isinstance(source, Mapping):
        source = source.get("default")
    if not isinstance(source, str):
        return None
    specials = tokenizer.special_tokens_map.items()
    return ChatTemplate(source, {name: text for name, text in specials if isinstance(text, str)})
