"""What serves one request of a session, and all requests of a list call in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar, cast

from evalution_core import (
    EvalutionError,
    GenerationOutput,
    InvalidRequestError,
    LoglikelihoodRequest,
    RequestFailure,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_enginekit.assembly import Assembly
from evalution_enginekit.pieces import CompletionPiece, RequestPrompt
from evalution_enginekit.request_loop import RequestJob, RequestLoop, Tell
from evalution_enginekit.scoring import ScoringJob
from evalution_enginekit.streams import StreamLimits
from evalution_enginekit.tokenizer import Tokenizer
from evalution_enginekit.tokens import TokenScore, TokenSpan

Q = TypeVar("Q", LoglikelihoodRequest, RollingLoglikelihoodRequest)


def completion_job(
    prompt: RequestPrompt,
    tokenizer: Tokenizer | None,
    complete: Callable[[RequestPrompt], AsyncIterator[CompletionPiece]],
    *,
    tells: bool,
) -> RequestJob:
    """Reads the pieces of one completion up to its end or its cut; with `tells`, deltas too."""

    async def serve(tell: Tell) -> GenerationOutput:
        assembly = Assembly(prompt, tokenizer)
        pieces = cast("Any", complete(prompt))
        async with aclosing(pieces):
            async for piece in pieces:
                delta = assembly.take(piece)
                if tells and delta is not None:
                    tell(delta)
                if assembly.is_cut:
                    break
        return assembly.output()

    return RequestJob(serve, prompt.request.metadata)


def score_job(
    scoring: ScoringJob, score: Callable[[TokenSpan], Awaitable[TokenScore]]
) -> RequestJob:
    """Scores a prepared span, and makes of the score what its request is answered with."""

    async def serve(_: Tell) -> Any:
        return scoring.conclude(await score(scoring.span))

    return RequestJob(serve, scoring.metadata)


def answer_job(request: Q, answer: Callable[[Q], Awaitable[Any]]) -> RequestJob:
    """Has the runtime answer a request as it was asked; the metadata are the request's own."""

    async def serve(_: Tell) -> Any:
        return replace(await answer(request), metadata=request.metadata)

    return RequestJob(serve, request.metadata)


def results_in_order(
    loop: RequestLoop,
    jobs: Sequence[RequestJob],
    limits: StreamLimits,
    requests: Sequence[int] | None = None,
) -> list[Any]:
    """Results in the order of the jobs.

    What the runtime finds wrong with requests is raised for all of them, once every job is done.
    Any other error is raised at once, and what still runs is aborted. `requests` has the index of
    the request that each job is a part of, where that isn't the job's own.
    """
    parts: Sequence[int] = range(len(jobs)) if requests is None else requests
    stream = loop.open(limits)
    outputs: dict[int, Any] = {}
    refused: dict[int, EvalutionError] = {}
    try:
        for index, job in enumerate(jobs):
            stream.submit(index, job)
        stream.finish_input()
        for index, result in stream.results():
            if not isinstance(result, RequestFailure):
                outputs[index] = result
            elif isinstance(result.error, InvalidRequestError | UnsupportedRequestError):
                part: int = parts[cast("int", index)]
                refused.setdefault(part, result.error)
            else:
                raise result.error
    finally:
        stream.close()
    if refused:
        raise _refusal(refused, len(set(parts)))
    return [outputs[index] for index in range(len(jobs))]


def _refusal(
    refused: Mapping[int, EvalutionError], total: int
) -> InvalidRequestError | UnsupportedRequestError:
    """One error for requests that only the runtime could find wrong; the others did run."""
    kinds = {type(error) for error in refused.values()}
    kind = kinds.pop() if len(kinds) == 1 else InvalidRequestError
    shown = "; ".join(f"[{index}] {error}" for index, error in sorted(refused.items())[:3])
    more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
    message = f"the runtime refused {len(refused)} of {total} requests: {shown}{more}"
    assert issubclass(kind, InvalidRequestError | UnsupportedRequestError)
    return kind(message, failures=refused)
