"""A Hugging Face tokenizer, through Transformers (extra `[hf]`; no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from evalution_core import ConfigurationError, Model

from evalution_enginekit.chat import ChatTemplate
from evalution_enginekit.runtime import import_runtime
from evalution_enginekit.tokenizer import ids_before

TRANSFORMERS = ">=4.57,<6"


class TransformersTokenizer(Protocol):
    """The calls of `PreTrainedTokenizerBase` that the kit makes."""

    bos_token_id: int | None
    eos_token_id: int | None
    all_special_ids: list[int]
    chat_template: str | Mapping[str, str] | None
    special_tokens_map: Mapping[str, Any]

    def __len__(self) -> int: ...
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        clean_up_tokenization_spaces: bool,
    ) -> str: ...


def load_hf_tokenizer(model: Model, path: str) -> HFTokenizer:
    """`AutoTokenizer.from_pretrained`, with the model's revision, trust and extra arguments.

    Raises:
        EngineUnavailableError: Transformers is missing or too old.
        ConfigurationError: nothing loadable is there.
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
    return HFTokenizer(loaded)


class HFTokenizer:
    """The kit's tokenizer on a Transformers one; `eos_ids` adds what the model declares."""

    def __init__(
        self, tokenizer: TransformersTokenizer, declared_eos: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._declared_eos = tuple(declared_eos)

    @cached_property
    def leading_ids(self) -> tuple[int, ...]:
        encode = self._tokenizer.encode
        return ids_before(
            encode("a", add_special_tokens=True), encode("a", add_special_tokens=False)
        )

    @property
    def bos_id(self) -> int | None:
        return self._tokenizer.bos_token_id

    @property
    def eos_id(self) -> int | None:
        return self._tokenizer.eos_token_id

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        own = () if self.eos_id is None else (self.eos_id,)
        return frozenset((*own, *self._declared_eos))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        return frozenset(self._tokenizer.all_special_ids)

    @property
    def vocabulary_size(self) -> int:
        return len(self._tokenizer)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        source = self._tokenizer.chat_template
        if isinstance(source, Mapping):
            source = source.get("default")
        if not isinstance(source, str):
            return None
        specials = {
            name: str(text)
            for name, text in self._tokenizer.special_tokens_map.items()
            if isinstance(text, str)
        }
        return ChatTemplate(source, specials)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(
            list(token_ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )

