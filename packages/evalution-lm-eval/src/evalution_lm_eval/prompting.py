"""Texts to ids for lm-eval, which splits context and continuation by itself."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingTypeStubs]

from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    HasMaxModelLen,
    HasTokenizer,
    InvalidRequestError,
    SpecialTokens,
    TextCodec,
    UnsupportedRequestError,
)
from evalution_enginekit.chat import ChatTemplate
from evalution_lm_eval.requests import ChatPrompt, HasChatTemplate, rendered


class _Codec(TextCodec, SpecialTokens, Protocol): ...


@dataclass(frozen=True, slots=True)
class Encoder:
    """A session's tokenizer, as lm-eval's models use theirs."""

    codec: _Codec

    def encode(self, text: str, *, with_leading: bool = True) -> list[int]:
        """Ids of a text; `with_leading` after those that stand before any text, never doubled."""
        token_ids, leading = self.codec.encode(text), list(self.codec.leading_ids)
        if not with_leading or token_ids[: len(leading)] == leading:
            return token_ids
        return leading + token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return self.codec.decode(token_ids, skip_special_tokens=skip_special_tokens)

    @property
    def eos_id(self) -> int:
        """Raises `InvalidRequestError` where the tokenizer has none."""
        if self.codec.eos_id is None:
            raise InvalidRequestError("the tokenizer has no end-of-sequence token")
        return self.codec.eos_id

    @property
    def prefix_id(self) -> int:
        """What stands for an empty context: BOS, else EOS."""
        return self.eos_id if self.codec.bos_id is None else self.codec.bos_id

    def after_nothing(self, continuation: str) -> tuple[list[int], list[int]]:
        """Context and continuation for an empty context, as `TemplateLM.loglikelihood` has them."""
        token_ids = self.encode(continuation, with_leading=False)
        begins = token_ids[:1] == [self.prefix_id]
        return [self.prefix_id], token_ids[1:] if begins else token_ids


def encoder_of(session: BaseInferenceSession) -> Encoder | None:
    """The session's own; None where it keeps its tokenizer, or the special ids, to itself."""
    tokenizer: object = session.tokenizer if isinstance(session, HasTokenizer) else None
    return Encoder(cast("_Codec", tokenizer)) if isinstance(tokenizer, SpecialTokens) else None


class PromptingLM(TemplateLM, ABC):
    """A session's tokenizer and template, as far as it lets callers have them.

    Args:
        session: a live one.
        engine: what built it, if that is known.
        name: of the tokenizer, for lm-eval's cache of prompts.
    """

    def __init__(self, session: BaseInferenceSession, engine: BaseEngine | None, name: str) -> None:
        super().__init__()
        self._session = session
        self._engine = engine
        self._name = name
        self._encoder = encoder_of(session)

    @property
    def max_length(self) -> int | None:
        """Tokens that the model can be fed; None if unknown."""
        session = self._session
        return session.max_model_len if isinstance(session, HasMaxModelLen) else None

    @property
    def eot_token_id(self) -> int:
        return self._tokens.eos_id

    @property
    def prefix_token_id(self) -> int:
        """What an empty context stands for: BOS, else EOS."""
        return self._tokens.prefix_id

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Ids of a text, by default after the ids that the tokenizer puts first, never doubled."""
        return self._tokens.encode(string, with_leading=add_special_tokens is not False)

    def tok_decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self._tokens.decode(tokens, skip_special_tokens=skip_special_tokens)

    @property
    def tokenizer_name(self) -> str:
        """A file name for the tokenizer with its template, by which lm-eval caches prompts."""
        template = self._template
        source = "" if template is None else template.source
        if template is not None and template.variables:
            source += json.dumps(template.variables, sort_keys=True)
        digest = hashlib.sha256(source.encode()).hexdigest()[:8]
        return f"{re.sub(r'[^A-Za-z0-9._-]+', '__', self._name)}-{digest}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The source of the model's template, "" where only the engine knows it.

        Raises:
            ConfigurationError: a template is asked for by name.
        """
        if isinstance(chat_template, str) and chat_template != "default":
            raise ConfigurationError(
                f"there is no chat template named {chat_template!r}: an engine uses the one of its "
                "tokenizer; leave the name out, or name another tokenizer in model_args"
            )
        if not chat_template:
            return None
        return "" if self._template is None else self._template.source

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The prompt of a conversation; where only the engine knows the template, it renders.

        Raises:
            InvalidRequestError: the template refuses the conversation.
            UnsupportedRequestError: there is no template, or an answer is begun and only the engine
                knows the template.
        """
        if self._template is not None:
            return rendered(
                self._template, chat_history, add_generation_prompt=add_generation_prompt
            )
        self._require(Capability.CHAT, "apply_chat_template")
        if not add_generation_prompt:
            raise UnsupportedRequestError(
                "the task begins the answer (gen_prefix), which needs the chat template, and the "
                "session keeps it to itself or has none"
            )
        return ChatPrompt(chat_history)

    def _require(self, capability: Capability, who: str) -> None:
        if self._capabilities is not None and capability not in self._capabilities:
            raise UnsupportedRequestError(
                f"{who} needs {capability}; the capabilities of the engine are "
                f"{', '.join(sorted(self._capabilities)) or 'none'}"
            )

    @property
    def _takes_ids(self) -> bool:
        known = self._capabilities
        return self._encoder is not None and (known is None or Capability.TOKEN_IDS in known)

    @property
    def _capabilities(self) -> frozenset[Capability] | None:
        narrowed = self._session.capabilities
        if narrowed is None and self._engine is not None:
            return self._engine.capabilities
        return narrowed

    @property
    def _tokens(self) -> Encoder:
        if self._encoder is None:
            raise UnsupportedRequestError(
                "the session keeps its tokenizer to itself, so nothing can be encoded here"
            )
        return self._encoder

    @property
    def _template(self) -> ChatTemplate | None:
        codec = None if self._encoder is None else self._encoder.codec
        return codec.chat_template if isinstance(codec, HasChatTemplate) else None
