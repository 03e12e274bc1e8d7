"""Requests to jobs: validated, rendered, tokenized and fitted, on the caller's side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from evalution_core import (
    ContextLengthError,
    EngineRuntimeError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    Message,
    RequestFailure,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_core.encoding import (
    ContextEncoder,
    FittedPair,
    TokenSpan,
    conditioning_id,
    encode_request,
    encode_rolling,
    encode_with_leading,
    fit_pair,
    rolling_windows,
    strip_leading,
)
from evalution_enginekit.chat import ChatTemplate
from evalution_enginekit.generation import GenerationJob
from evalution_enginekit.runtime import runtime_errors
from evalution_enginekit.scoring import ScoringJob, complete_logprobs
from evalution_enginekit.tokenizer import Tokenizer
from evalution_enginekit.tokens import TokenPrompt, TokenScore
from evalution_enginekit.validation import Admission, check_unicode

J = TypeVar("J")

_UNKEYED = -1
_THOUGHT = ("<think>", "</think>")
"""What opens and what closes the reasoning of models that write it into their text."""


class Preparation:
    """Text above, tokens below: the one place where requests become ids.

    `model_vocabulary` is how many ids the model has an embedding for; None: as the tokenizer.
    """

    def __init__(
        self,
        admission: Admission,
        tokenizer: Tokenizer,
        max_model_len: int,
        model_vocabulary: int | None = None,
    ):
        self._admission = admission
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._model_vocabulary = model_vocabulary
        self._contexts = ContextEncoder(tokenizer)

    def generation(self, request: GenerationRequest) -> GenerationJob:
        """Raises `InvalidRequestError`, `ContextLengthError` or `UnsupportedRequestError`."""
        self._admission.generation(request)
        _check_beams(request)
        text, token_ids = self._prompt(request)
        kept, truncated = self._leave_room(token_ids, request)
        prompt = TokenPrompt(
            key=_UNKEYED,
            token_ids=kept,
            max_new_tokens=request.max_new_tokens,
            stop_ids=frozenset() if request.ignore_eos else self._tokenizer.eos_ids,
            do_sample=request.do_sample,
            temperature=request.temperature if request.do_sample else 0.0,
            top_p=request.top_p,
            top_k=request.top_k,
            seed=request.seed,
            num_beams=request.num_beams,
            logprobs=request.logprobs,
            stop=tuple(request.stop),
        )
        return GenerationJob(prompt, text, request.metadata, truncated)

    def loglikelihood(self, request: LoglikelihoodRequest) -> ScoringJob:
        """Raises `InvalidRequestError`, `ContextLengthError` or `UnsupportedRequestError`."""
        self._admission.loglikelihood(request)
        context = request.context
        if request.messages is not None and request.context_input_ids is None:
            context = self._render(request.messages, add_generation_prompt=True)
            _check_thought(context, request.continuation)
        context_ids, continuation_ids = encode_request(
            self._tokenizer, request, context, contexts=self._contexts
        )
        self._check_vocabulary(context_ids)
        self._check_vocabulary(continuation_ids)
        pair = fit_pair(
            context_ids,
            continuation_ids,
            max_model_len=self._max_model_len,
            truncation=request.truncation,
        )
        return ScoringJob(pair.span, _Conclusion(pair, request), request.metadata)

    def rolling(self, request: RollingLoglikelihoodRequest) -> list[TokenSpan]:
        """Raises `InvalidRequestError` or `UnsupportedRequestError`."""
        self._admission.rolling(request)
        if request.input_ids is not None:
            token_ids = strip_leading(self._tokenizer, list(request.input_ids))
        else:
            token_ids = encode_rolling(self._tokenizer, request.text)
        leading = conditioning_id(self._tokenizer)
        self._check_vocabulary([leading, *token_ids])
        return rolling_windows(token_ids, leading, self._max_model_len)

    def probe(self, token_ids: Sequence[int], length: int) -> GenerationJob:
        """A greedy request on ids, for the self check."""
        prompt = TokenPrompt(_UNKEYED, list(token_ids), length, logprobs=2)
        return GenerationJob(prompt, "", {})

    def _prompt(self, request: GenerationRequest) -> tuple[str, list[int]]:
        tokenizer = self._tokenizer
        if request.input_ids is not None:
            token_ids = list(request.input_ids)
            self._check_vocabulary(token_ids)
            return tokenizer.decode(token_ids), token_ids
        if request.rendered_prompt is not None:
            text = request.rendered_prompt
        elif request.messages is not None:
            text = self._render(
                request.messages,
                add_generation_prompt=request.add_generation_prompt,
                tools=request.tools,
            )
        else:
            text = request.prompt or ""
        token_ids = encode_with_leading(tokenizer, text) or [conditioning_id(tokenizer)]
        self._check_vocabulary(token_ids)
        return text, token_ids

    def _leave_room(
        self, token_ids: list[int], request: GenerationRequest
    ) -> tuple[list[int], int]:
        room = self._max_model_len - request.max_new_tokens
        if room < 1:
            raise ContextLengthError(
                f"max_new_tokens={request.max_new_tokens} leaves no room for a prompt: "
                f"max_model_len is {self._max_model_len}"
            )
        excess = max(0, len(token_ids) - room)
        if excess and request.truncation == "error":
            raise ContextLengthError(
                f"the prompt has {len(token_ids)} tokens; with max_new_tokens="
                f"{request.max_new_tokens} and max_model_len={self._max_model_len} there is room "
                f"for {room}, and truncation='error' forbids a cut"
            )
        return token_ids[excess:], excess

    def _render(self, messages: Sequence[Message], **options: object) -> str:
        template: ChatTemplate | None = self._tokenizer.chat_template
        if template is None:
            raise InvalidRequestError(
                "messages need a chat template and this model has none; give rendered_prompt, or "
                "the tokenizer_path of the matching chat model"
            )
        rendered = template.render(messages, **options)  # pyright: ignore[reportArgumentType]
        check_unicode("the rendered chat", rendered)
        return rendered

    def _check_vocabulary(self, token_ids: Sequence[int]) -> None:
        largest = max(token_ids, default=0)
        known = self._tokenizer.vocabulary_size
        if largest >= known:
            raise InvalidRequestError(
                f"token id {largest} is outside the vocabulary of {known} tokens"
            )
        embedded = self._model_vocabulary
        if embedded is not None and largest >= embedded:
            raise InvalidRequestError(
                f"token id {largest} is one of the tokenizer's {known} and outside the model's "
                f"vocabulary of {embedded}; set tokenizer_path to the tokenizer of this model"
            )


def _check_thought(context: str, continuation: str) -> None:
    """Refuse an answer where a template has the model think first: its score says nothing."""
    opening, closing = _THOUGHT
    if context.rstrip().endswith(opening) and closing not in continuation:
        raise InvalidRequestError(
            f"the chat template ends the prompt with {opening}, so an answer right behind it would "
            f"be scored as a thought; set the template's variable that leaves the thought out in "
            f"chat_template_kwargs of the model (enable_thinking: false, say), or give the prompt "
            f"as context instead of messages, with {closing} at its end"
        )


def _check_beams(request: GenerationRequest) -> None:
    if request.num_beams > 1 and request.logprobs is not None:
        raise UnsupportedRequestError(
            f"num_beams={request.num_beams} with logprobs={request.logprobs}: a beam search gives "
            f"no log-probabilities of its tokens; ask for one of the two"
        )


class _Conclusion:
    """A span's score as the output of its request."""

    def __init__(self, pair: FittedPair, request: LoglikelihoodRequest):
        self._pair = pair
        self._metadata = request.metadata

    def __call__(self, score: TokenScore) -> LoglikelihoodOutput:
        logprobs = complete_logprobs(self._pair.span, score)
        return LoglikelihoodOutput(
            math.fsum(logprobs),
            score.is_greedy,
            len(logprobs),
            self._metadata,
            token_ids=self._pair.continuation_ids,
            token_logprobs=logprobs,
            prompt_tokens=self._pair.span.start,
            truncated_tokens=self._pair.truncated_tokens,
            runtime=score.runtime,
        )


def or_failure(prepare: Callable[[Any], J]) -> Callable[[Any], J | RequestFailure]:
    """`prepare`, with what it raises of a request as a value: it is no other request's business."""

    def prepared(request: object) -> J | RequestFailure:
        try:
            with runtime_errors("preparing a request"):
                return prepare(request)
        except (InvalidRequestError, UnsupportedRequestError, EngineRuntimeError) as error:
            return RequestFailure(error, _metadata_of(request))

    return prepared


def _metadata_of(request: object) -> dict[str, object]:
    known = (GenerationRequest, LoglikelihoodRequest, RollingLoglikelihoodRequest)
    return request.metadata if isinstance(request, known) else {}
