"""Texts to ids for lm-eval, which splits context and continuation by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from evalution_core import (
    BaseInferenceSession,
    HasTokenizer,
    InvalidRequestError,
    SpecialTokens,
    TextCodec,
)


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
