"""Faults in what is read from a model's files: its tokenizer, its template, its weights."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from evalution_core import GenerationRequest, LoglikelihoodRequest
from mutants.catalogue import shared_fault
from mutants.toy import MergingTokenizer, ToyHooks


class _Normalises(MergingTokenizer):
    def encode(self, text: str) -> list[int]:
        return super().encode(unicodedata.normalize("NFKC", text))


class _JoinsSpaces(MergingTokenizer):
    def encode(self, text: str) -> list[int]:
        return super().encode(text.replace("  ", " "))


class _CleansUp(MergingTokenizer):
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text = super().decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text.replace(" n't", "n't").replace(" 's", "'s")


@shared_fault("test_text_is_encoded_as_by_the_reference")
class NormalisesText(ToyHooks):
    """The tokenizer normalises characters, and the checkpoint's doesn't."""

    tokenizer_class = _Normalises


@shared_fault("test_text_is_encoded_as_by_the_reference")
class JoinsSpaces(ToyHooks):
    """The tokenizer takes two spaces for one, and the checkpoint's doesn't."""

    tokenizer_class = _JoinsSpaces


@shared_fault("test_ids_are_decoded_as_by_the_reference")
class CleansUpSpaces(ToyHooks):
    """Spaces before `n't` and `'s` are dropped when ids become text."""

    tokenizer_class = _CleansUp


@shared_fault("test_what_is_scored_is_what_the_tokenizer_gives")
class FeedsOtherIdsThanItShows(ToyHooks):
    """The runtime has a tokenizer of its own, which reads a tab as a space."""

    def change_pair(self, request: LoglikelihoodRequest) -> LoglikelihoodRequest:
        if "\t" not in request.context + request.continuation:
            return request
        context, continuation = (
            text.replace("\t", " ") for text in (request.context, request.continuation)
        )
        return replace(request, context=context, continuation=continuation)


@shared_fault("test_chat_is_rendered_as_by_the_reference")
class StripsMessages(ToyHooks):
    """Messages are stripped before the chat template gets them."""

    def change_request(self, request: GenerationRequest) -> GenerationRequest:
        if request.messages is None:
            return request
        stripped: list[Any] = [
            {**message, "content": message["content"].strip()}
            if isinstance(message["content"], str)
            else message
            for message in request.messages
        ]
        return replace(request, messages=stripped)


@shared_fault("test_a_missing_weight_is_refused")
class FillsInWeights(ToyHooks):
    """A weight that the checkpoint lacks is filled in at random."""

    def meet_missing_weight(self) -> None:
        return


@shared_fault("test_a_missing_weight_is_refused")
class FailsWithoutAReason(ToyHooks):
    """A weight that the checkpoint lacks is a `KeyError` of the loader."""

    def meet_missing_weight(self) -> None:
        raise KeyError("row.7")
