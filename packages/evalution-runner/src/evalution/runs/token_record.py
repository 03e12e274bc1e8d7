"""Tokens of answers with their texts and log-probabilities, for runs that record them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from evalution.samples import TokenLogprob
from evalution.suites.suite import Sample
from evalution_core import BaseInferenceSession, Capability, GenerationRequest
from evalution_core.requests import Output, Request

_DIGITS = 6
"""Decimals of a log-probability in a sample; the journal has all of them."""
_LONGEST_HOLD = 8
"""Tokens that one character may be spread over."""


class TokenRecorder:
    """Asks a session for token log-probabilities, and puts tokens into words.

    Args:
        session: its tokenizer, where callers may use it, gives the texts.
    """

    def __init__(self, session: BaseInferenceSession):
        self._gives_generated = Capability.LOGPROBS in session.capabilities
        codec = session.tokenizer
        self._decode = None if codec is None else codec.decode
        self._known: dict[int, str] = {}
        self.notice: str | None = None
        """A sentence on what can't be recorded."""

    def prepare(self, sample: Sample) -> None:
        """Have requests to generate ask for the log-probability of each token."""
        sample.requests = [self._prepare(request) for request in sample.requests]

    def record(self, answers: Iterable[Output | None]) -> list[list[TokenLogprob] | None]:
        """Return the tokens of each answer, None for one without log-probabilities."""
        return [self._record(answer) for answer in answers]

    def _prepare(self, request: Request) -> Request:
        if not isinstance(request, GenerationRequest) or request.logprobs is not None:
            return request
        if not self._gives_generated:
            self.notice = "the engine gives no log-probabilities of tokens that it generates"
            return request
        return replace(request, logprobs=0)

    def _record(self, answer: Output | None) -> list[TokenLogprob] | None:
        if answer is None or answer.token_logprobs is None:
            return None
        ids = answer.token_ids
        texts: Sequence[str | None] = [None] * len(answer.token_logprobs)
        if ids is not None and self._decode is not None:
            texts = self._split(ids, self._decode)
        # Ids may end before the token of a stop; a server may give no ids.
        numbers = texts if ids is None else ids
        return [
            [None if ids is None else number, text, round(logprob, _DIGITS)]
            for number, text, logprob in zip(numbers, texts, answer.token_logprobs, strict=False)
        ]

    def _split(self, ids: Sequence[int], decode: Callable[..., str]) -> list[str]:
        """Return the text of each token: decoded alone, where these make up the whole."""
        for number in set(ids) - self._known.keys():
            self._known[number] = decode([number], skip_special_tokens=False)
        alone = [self._known[number] for number in ids]
        if "".join(alone) == decode(ids, skip_special_tokens=False):
            return alone
        return split_tokens(ids, lambda part: decode(part, skip_special_tokens=False))


def split_tokens(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """Return what each token adds to the text of those before it.

    A token is decoded together with the ones before it, since many vocabularies bind a space or a
    part of a character to the neighbour. A token that leaves a character incomplete adds nothing;
    the one that completes it adds the character.
    """
    texts: list[str] = []
    begin = read = 0
    shown = ""
    for end in range(1, len(ids) + 1):
        text = decode(ids[begin:end])
        if text.endswith("\ufffd") and end - read <= _LONGEST_HOLD and end < len(ids):
            texts.append("")
            continue
        texts.append(text[len(shown) :])
        begin, read = read, end
        shown = decode(ids[begin:read])
    return texts
