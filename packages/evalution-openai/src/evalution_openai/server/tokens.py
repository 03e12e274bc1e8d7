"""The routes `/tokenize`, `/detokenize` and `/tokenizer_info`."""

from __future__ import annotations

import asyncio
from typing import Any

from typing_extensions import TypedDict

from evalution_core import SpecialTokens
from evalution_enginekit import ChatTemplate
from evalution_openai.server.bodies import DetokenizeBody, TokenizeBody
from evalution_openai.server.errors import ApiError
from evalution_openai.server.serving import ServedModel, WholeTokenizer


class TokenizeAnswer(TypedDict):
    tokens: list[int]
    count: int
    max_model_len: int | None


class DetokenizeAnswer(TypedDict):
    prompt: str


class TokenizerInfo(TypedDict):
    """The tokenizer as data; null where the session doesn't report it."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: None
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None
    special_tokens: dict[str, str] | None
    leading_ids: list[int] | None
    bos_id: int | None
    eos_id: int | None
    eos_ids: list[int] | None
    special_ids: list[int] | None
    vocabulary_size: int | None


async def tokenize(served: ServedModel, body: TokenizeBody) -> TokenizeAnswer:
    """Encode a text as the server encodes a prompt."""
    codec = served.require_tokenizer("/tokenize")
    token_ids: list[int] | None = None
    if body.add_special_tokens is not False:
        token_ids = await asyncio.to_thread(served.encode_prompt, body.prompt)
    if token_ids is None:
        token_ids = await asyncio.to_thread(codec.encode, body.prompt)
    return {"tokens": token_ids, "count": len(token_ids), "max_model_len": served.max_model_len}


async def detokenize(served: ServedModel, body: DetokenizeBody) -> DetokenizeAnswer:
    """Decode ids."""
    codec = served.require_tokenizer("/detokenize")
    size = codec.vocabulary_size if isinstance(codec, WholeTokenizer) else None
    if size is not None and (largest := max(body.tokens, default=0)) >= size:
        raise ApiError(400, f"token id {largest} is outside the vocabulary of {size} tokens")
    skip = bool(body.skip_special_tokens)
    text = await asyncio.to_thread(codec.decode, body.tokens, skip_special_tokens=skip)
    return {"prompt": text}


async def tokenizer_info(served: ServedModel) -> TokenizerInfo:
    """Return the facts that a client needs to encode as the server does."""
    codec = served.require_tokenizer("/tokenizer_info")
    special = codec if isinstance(codec, SpecialTokens) else None
    whole = codec if isinstance(codec, WholeTokenizer) else None
    template = whole.chat_template if whole else None
    known = template if isinstance(template, ChatTemplate) else None
    return {
        "tokenizer_class": type(codec).__name__,
        "bos_token": _text(served, special.bos_id if special else None),
        "eos_token": _text(served, special.eos_id if special else None),
        "pad_token": None,
        "chat_template": (template.source or None) if template is not None else None,
        "chat_template_kwargs": known.variables if known is not None else None,
        "special_tokens": known.special_tokens if known is not None else None,
        "leading_ids": list(special.leading_ids) if special else None,
        "bos_id": special.bos_id if special else None,
        "eos_id": special.eos_id if special else None,
        "eos_ids": sorted(whole.eos_ids) if whole else None,
        "special_ids": sorted(whole.special_ids) if whole else None,
        "vocabulary_size": whole.vocabulary_size if whole else None,
    }


def _text(served: ServedModel, token_id: int | None) -> str | None:
    return None if token_id is None else served.spell(token_id)
