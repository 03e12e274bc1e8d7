"""Requests at TensorRT-LLM, to generate or to score: one by one, or in fixed batches.

Both kinds are in one file because TensorRT-LLM takes both by one call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import count
from types import ModuleType
from typing import Any

import numpy as np

from evalution_core import EngineRuntimeError, EvalutionError, InvalidRequestError
from evalution_core.redaction import redact_text
from evalution_core.requests import FinishReason, TopLogprobs
from evalution_enginekit import TokenPrompt, TokenScore, WrongScoresError
from evalution_enginekit.distributions import find_top
from evalution_enginekit.planning import take_top
from evalution_enginekit.serving import (
    EventLoopRequests,
    FixedBatchRequests,
    RequestUpdate,
    ServingRequest,
    SpanGroup,
)
from evalution_tensorrt_llm.runtime import ScoreSource
from evalution_tensorrt_llm.upstream import Engine, MakesParameters, Output, Tensor, TokenLogprobs

_log = logging.getLogger(__name__)

_NO_END = -1
"""Upstream's own sign for a request without an end token. Its `ignore_eos` isn't used, because
releases of 1.3 then ignore `stop_token_ids` too."""
_PADDING = 0
"""Fills up beams, which there are none of; without it the padding would be `_NO_END`."""
_FINISHED: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
_ROWS = 64
"""Rows of logits that are turned into log-probabilities at a time."""
_GRACE_S = 10.0
"""Time for an aborted request to end; the runtime ends it with its next step."""


class RequestFactory:
    """Makes the requests that go one by one or in batches.

    Args:
        module: the runtime.
        source: the part of a result that scores are read from.
        vocabulary: how many tokens can be ranked; None if unknown.
        reuses_blocks: the runtime shares computed prefixes. A scored request then has a salt that
            no other one has, because what comes from the cache has no rows.
    """

    def __init__(
        self,
        module: ModuleType,
        source: ScoreSource,
        vocabulary: int | None,
        *,
        reuses_blocks: bool,
    ):
        self._make_parameters: MakesParameters = module.SamplingParams
        self._source = source
        self._vocabulary = vocabulary
        self._reuses_blocks = reuses_blocks
        self._salts = count()
        self.request_error: type[Exception] = module.executor.utils.RequestError
        """The error that TensorRT-LLM raises where a request fails alone."""
        self.refusals: tuple[type[Exception], ...] = (self.request_error, ValueError)
        """Errors that it raises over one request that it can't serve."""

    def make(self, request_id: str, work: ServingRequest) -> _Request:
        """Return a request of the runtime.

        Raises:
            InvalidRequestError: TensorRT-LLM refuses its values.
        """
        if isinstance(work, TokenPrompt):
            parameters = self._generation(work)
            return _Request(request_id, work, list(work.token_ids), parameters, None, self._source)
        salt = f"evalution-{next(self._salts)}" if self._reuses_blocks else None
        token_ids = scored_ids(work, self._source)
        return _Request(request_id, work, token_ids, self._scoring(work), salt, self._source)

    def to_invalid_request(self, error: Exception) -> EvalutionError:
        return InvalidRequestError(f"TensorRT-LLM refuses the request: {redact_text(str(error))}")

    def _generation(self, prompt: TokenPrompt) -> Any:
        """Return parameters to generate up to one of the prompt's own stop ids, or its limit."""
        sampling: dict[str, Any] = {}
        if prompt.do_sample:
            sampling = {
                "temperature": prompt.temperature,
                "top_p": prompt.top_p,
                "top_k": prompt.top_k,
            }
        try:
            return self._make_parameters(
                end_id=_NO_END,
                pad_id=_PADDING,
                max_tokens=prompt.max_new_tokens,
                stop_token_ids=sorted(prompt.stop_ids),
                # Otherwise the stop's own id is cut off, while its log-probability stays.
                include_stop_str_in_output=True,
                logprobs=self._limit_ranked(prompt.logprobs),
                detokenize=False,
                **sampling,
            )
        except self.refusals as error:
            raise self.to_invalid_request(error) from error

    def _scoring(self, group: SpanGroup) -> Any:
        """Return parameters to generate one token, with all that `group_scores` reads."""
        rows: dict[str, Any] = {"return_context_logits": True}
        if self._source is ScoreSource.PROMPT_LOGPROBS:
            # One, since releases of 1.2 took none for a request without log-probabilities.
            rows = {"prompt_logprobs": group.top_logprobs or 1}
        return self._make_parameters(
            end_id=_NO_END, pad_id=_PADDING, max_tokens=1, detokenize=False, **rows
        )

    def _limit_ranked(self, wanted: int | None) -> int | None:
        if wanted is None:
            return None
        return max(1, wanted if self._vocabulary is None else min(wanted, self._vocabulary))


@dataclass(frozen=True, slots=True)
class _Request:
    request_id: str
    work: ServingRequest
    token_ids: list[int]
    parameters: Any
    cache_salt: str | None
    source: ScoreSource

    def update(self, output: Output) -> RequestUpdate:
        work = self.work
        if isinstance(work, TokenPrompt):
            return generation_update(self.request_id, output, work)
        return RequestUpdate.from_scores(
            self.request_id, lambda: group_scores(output, work, self.source)
        )


class AsyncRequests(EventLoopRequests):
    """A `ServingRuntime` on `LLM.generate_async`.

    Args:
        llm: TensorRT-LLM's engine.
        factory: makes the requests.
        loop: an event loop of their own.
    """

    def __init__(self, llm: Engine, factory: RequestFactory, loop: asyncio.AbstractEventLoop):
        super().__init__(loop)
        self._llm = llm
        self._factory = factory
        # Upstream reports a dead worker nowhere else, and whoever waits for it waits without end.
        self._executor = llm._executor  # pyright: ignore[reportPrivateUsage]

    def generate(self, request_id: str, prompt: TokenPrompt) -> None:
        self.start(request_id, self._follow_request(self._factory.make(request_id, prompt)))

    def score(self, request_id: str, group: SpanGroup) -> None:
        self.start(request_id, self._follow_request(self._factory.make(request_id, group)))

    def advance(self) -> list[RequestUpdate]:
        self._check_executor()
        return super().advance()

    def _check_executor(self) -> None:
        """Raise the error that has ended the executor."""
        try:
            self._executor._handle_background_error()  # pyright: ignore[reportPrivateUsage]
        except self._factory.request_error as error:
            _log.warning("TensorRT-LLM: a request failed: %s", redact_text(str(error)))
        if self._executor.is_shutdown():
            raise RuntimeError("TensorRT-LLM's executor has shut down")

    async def _follow_request(self, request: _Request) -> AsyncIterator[RequestUpdate]:
        streams = isinstance(request.work, TokenPrompt)
        result = self._submit(request, streams=streams)
        try:
            async for output in result:
                if streams or output.finished:
                    yield request.update(output)
        except asyncio.CancelledError:
            await self._abort(result)
            raise
        except self._factory.request_error as error:
            raise EngineRuntimeError(
                f"TensorRT-LLM failed the request: {redact_text(str(error))}"
            ) from error

    def _submit(self, request: _Request, *, streams: bool) -> Output:
        try:
            return self._llm.generate_async(
                {"prompt_token_ids": request.token_ids},
                request.parameters,
                streaming=streams,
                cache_salt=request.cache_salt,
            )
        except self._factory.refusals as error:
            raise self._factory.to_invalid_request(error) from error

    async def _abort(self, result: Output) -> None:
        """Abort a request, and wait until the runtime no longer works on it."""
        if result.finished or self._executor.is_shutdown():
            return
        result.abort()
        # Not `asyncio.timeout`: until Python 3.11.3 it is lost in a task that was cancelled
        # (https://github.com/python/cpython/issues/102780).
        ending = asyncio.ensure_future(_exhaust(result))
        done, _ = await asyncio.wait([ending], timeout=_GRACE_S)
        if not done:
            ending.cancel()
            raise RuntimeError(f"TensorRT-LLM didn't end an aborted request within {_GRACE_S:g} s")
        try:
            ending.result()
        except self._factory.request_error:
            return  # it has failed instead, so it is over


async def _exhaust(result: Output) -> None:
    async for _ in result:
        pass


def make_batch_requests(llm: Engine, factory: RequestFactory) -> FixedBatchRequests[_Request]:
    """Return the requests of fixed batches, each a call of `LLM.generate`."""

    def run(requests: Sequence[_Request]) -> list[RequestUpdate]:
        salts = [request.cache_salt for request in requests]
        try:
            outputs = llm.generate(
                [{"prompt_token_ids": request.token_ids} for request in requests],
                [request.parameters for request in requests],
                use_tqdm=False,
                cache_salt=salts if any(salts) else None,
            )
        except factory.refusals as error:
            raise factory.to_invalid_request(error) from error
        return [request.update(output) for request, output in zip(requests, outputs, strict=True)]

    return FixedBatchRequests(factory.make, run)


def generation_update(request_id: str, output: Output, prompt: TokenPrompt) -> RequestUpdate:
    """Return the new tokens of a prompt, with the log-probabilities that it asks for."""
    completion = output.outputs[0]
    token_ids = completion.token_ids_diff
    update = RequestUpdate(request_id, output.finished, token_ids)
    if output.finished:
        reason = completion.finish_reason
        update.finish = _FINISHED.get(reason or "")
        update.runtime = _describe_cache(output) | {"stop_reason": completion.stop_reason}
        if update.finish is None:
            update.error = EngineRuntimeError(
                f"TensorRT-LLM ended the request before it was complete: {reason}"
            )
            return update
    if prompt.logprobs is not None:
        try:
            update.logprobs, update.top_logprobs = _generated_logprobs(
                token_ids, completion.logprobs_diff, prompt.logprobs
            )
        except EngineRuntimeError as error:
            update.error = error
    return update


def scored_ids(group: SpanGroup, source: ScoreSource) -> list[int]:
    """Return the ids that are fed to score `group`."""
    if source is ScoreSource.CONTEXT_LOGITS:
        return list(group.fed)
    (span,) = group.spans
    return list(span.token_ids)


def group_scores(output: Output, group: SpanGroup, source: ScoreSource) -> list[TokenScore]:
    """Return the scores of the spans of `group`.

    Raises:
        WrongScoresError: an entry that should be there is missing, or belongs to another token.
    """
    if source is ScoreSource.CONTEXT_LOGITS:
        return _read_context_logits(output, group)
    return _read_prompt_logprobs(output, group)


def _read_prompt_logprobs(output: Output, group: SpanGroup) -> list[TokenScore]:
    (span,) = group.spans
    token_ids = span.token_ids
    rows = output.outputs[0].prompt_logprobs
    if rows is None or len(rows) != len(token_ids):
        raise _missing_rows(len(token_ids), 0 if rows is None else len(rows), output)
    values: list[float] = []
    tops: TopLogprobs = []
    ranks: list[int | None] = []
    for position in range(span.start, len(token_ids)):
        entry = rows[position - 1].get(token_ids[position])
        if entry is None:
            raise WrongScoresError(
                f"TensorRT-LLM's prompt log-probabilities are shifted: token "
                f"{token_ids[position]} isn't among those of its position {position}"
            )
        values.append(entry.logprob)
        ranks.append(entry.rank)
        if group.top_logprobs is not None:
            listed = {candidate: one.logprob for candidate, one in rows[position - 1].items()}
            tops.append(take_top(listed, group.top_logprobs))
    is_greedy = None if None in ranks else all(rank == 1 for rank in ranks)
    return [TokenScore(values, is_greedy, _describe_cache(output), tops or None)]


def _read_context_logits(output: Output, group: SpanGroup) -> list[TokenScore]:
    rows = output.context_logits
    # [1, tokens, vocabulary] or without the 1.
    if rows is not None and len(rows.shape) == len(("one", "tokens", "vocabulary")):
        rows = rows[0]
    fed = group.fed
    if rows is None or rows.shape[0] != len(fed):
        raise _missing_rows(len(fed), 0 if rows is None else rows.shape[0], output)
    top = group.top_logprobs
    inner, inner_is_greedy, tops = _score_rows(
        rows[group.start - 1 : len(fed) - 1], fed[group.start :], top
    )
    last = rows[len(fed) - 1 : len(fed)]
    runtime = _describe_cache(output)
    scores: list[TokenScore] = []
    for span in group.spans:
        (value,), is_greedy, end = _score_rows(last, span.token_ids[-1:], top)
        is_greedy = inner_is_greedy and is_greedy
        scores.append(TokenScore([*inner, value], is_greedy, runtime, [*tops, *end] or None))
    return scores


def _score_rows(
    rows: Tensor, token_ids: Sequence[int], count: int | None
) -> tuple[list[float], bool, TopLogprobs]:
    """Return the tokens' log-probabilities in float32, and whether all of them are greedy.

    And the `count` likeliest tokens in the place of each, unless that is None.
    """
    values: list[float] = []
    tops: TopLogprobs = []
    is_greedy = True
    for begin in range(0, len(token_ids), _ROWS):
        targets = np.asarray(token_ids[begin : begin + _ROWS])
        logits: Any = rows[begin : begin + _ROWS].float().numpy()
        chosen = logits[np.arange(len(targets)), targets]
        top = logits.max(axis=-1)
        weights = np.exp(logits - top[:, None])
        sums = np.log(weights.sum(axis=-1))
        values += ((chosen - top) - sums).tolist()
        is_greedy = is_greedy and bool((chosen >= top).all())
        if count is not None:
            tops += [find_top(row, count) for row in (logits - top[:, None]) - sums[:, None]]
    return values, is_greedy, tops


def _missing_rows(wanted: int, found: int, output: Output) -> WrongScoresError:
    cached = output.cached_tokens
    return WrongScoresError(
        f"TensorRT-LLM computed rows for {found} of {wanted} scored tokens"
        + (f"; {cached} came from the cache" if cached else "")
    )


def _generated_logprobs(
    token_ids: list[int], entries: TokenLogprobs, wanted: int
) -> tuple[list[float], list[dict[int, float]]]:
    values: list[float] = []
    top: list[dict[int, float]] = []
    if len(entries) != len(token_ids):
        raise WrongScoresError(
            f"TensorRT-LLM returned {len(entries)} log-probabilities of {len(token_ids)} tokens"
        )
    for token_id, entry in zip(token_ids, entries, strict=True):
        if token_id not in entry:
            raise WrongScoresError(
                f"TensorRT-LLM left out the log-probability of generated token {token_id}"
            )
        values.append(entry[token_id].logprob)
        likeliest = sorted(entry.items(), key=lambda item: -item[1].logprob)[:wanted]
        top.append({candidate: ranked.logprob for candidate, ranked in likeliest})
    return values, top


def _describe_cache(output: Output) -> dict[str, Any]:
    return {"cached_tokens": output.cached_tokens}
