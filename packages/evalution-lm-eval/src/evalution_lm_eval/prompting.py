"""The tokenizer and chat template of a session, as lm-eval reads them to make its prompts.

Texts become ids by the rule of `evalution_core.encoding`, as in every engine.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC
from collections.abc import Sequence
from typing import Any

from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingTypeStubs]

from evalution_core import (
    BaseEngine,
    BaseInferenceSession,
    Capability,
    ConfigurationError,
    InvalidRequestError,
    TextCodec,
    UnsupportedRequestError,
)
from evalution_core.encoding import conditioning_id, encode_with_leading
from evalution_enginekit.chat import ChatTemplate
from evalution_lm_eval.requests import ChatPrompt, HasChatTemplate, rendered


class PromptingLM(TemplateLM, ABC):
    """A session's tokenizer and template, where callers may use them.

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
        self._codec = session.tokenizer

    @property
    def max_length(self) -> int | None:
        """Tokens that the model can be fed; None if unknown."""
        return self._session.info.max_model_len

    @property
    def eot_token_id(self) -> int:
        if self._tokens.eos_id is None:
            raise InvalidRequestError("the tokenizer has no end-of-sequence token")
        return self._tokens.eos_id

    @property
    def prefix_token_id(self) -> int:
        """The id that stands for an empty context: BOS, else EOS."""
        return conditioning_id(self._tokens)

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Return the ids of a text, by default after the leading ids, which are never doubled."""
        if add_special_tokens is False:
            return self._tokens.encode(string)
        return encode_with_leading(self._tokens, string)

    def tok_decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self._tokens.decode(tokens, skip_special_tokens=skip_special_tokens)

    @property
    def tokenizer_name(self) -> str:
        """File name for the tokenizer with its template, by which lm-eval caches prompts."""
        template = self._template
        source = "" if template is None else template.source
        if template is not None and template.variables:
            source += json.dumps(template.variables, sort_keys=True)
        digest = hashlib.sha256(source.encode()).hexdigest()[:8]
        return f"{re.sub(r'[^A-Za-z0-9._-]+', '__', self._name)}-{digest}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the source of the model's template, "" where only the engine knows it.

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
        """Return the prompt of a conversation; the engine renders if only it knows the template.

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
        known = self._session.capabilities
        if capability not in known:
            raise UnsupportedRequestError(
                f"{who} needs {capability}; the capabilities of the engine are "
                f"{', '.join(sorted(known)) or 'none'}"
            )

    @property
    def _takes_ids(self) -> bool:
        return self._codec is not None and Capability.TOKEN_IDS in self._session.capabilities

    @property
    def _tokens(self) -> TextCodec:
        if self._codec is None:
            raise UnsupportedRequestError(
                "the session keeps its tokenizer to itself, so nothing can be encoded here"
            )
        return self._codec

    @property
    def _template(self) -> ChatTemplate | None:
        codec = self._codec
        return codec.chat_template if isinstance(codec, HasChatTemplate) else None
