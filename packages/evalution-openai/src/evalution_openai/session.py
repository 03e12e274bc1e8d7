"""A model on a server."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, cast

from evalution_core import (
    CheckResult,
    EngineRuntimeError,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_enginekit import (
    CompletionPiece,
    RequestPrompt,
    RequestSession,
    TokenScore,
    TokenSpan,
)
from evalution_openai.answers import Fields, Reader, UseOfIds
from evalution_openai.bodies import BodyWriter, Exchange, scoring_cost
from evalution_openai.endpoint import Endpoint
from evalution_openai.rungs import Rung


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found out about a server, and how it will be asked.

    `encodes`: it gets ids. `renders`: messages are rendered here. `leaves_open`: where they aren't,
    it heeds `add_generation_prompt=False`.
    """

    api: Literal["auto", "completions", "chat"]
    encodes: bool
    renders: bool
    leaves_open: bool
    ids: UseOfIds
    rung: Rung | None
    check: CheckResult
    timings: bool
    described: dict[str, Any]


class OpenAISession(RequestSession):
    """Requests of one model to one server, as `findings` say."""

    def __init__(
        self, endpoint: Endpoint, writer: BodyWriter, findings: Findings, **base: Any
    ) -> None:
        super().__init__(engine="OpenAICompatible", encodes=findings.encodes, **base)
        self._endpoint = endpoint
        self._writer = writer
        self._findings = findings

    async def _complete(self, prompt: RequestPrompt) -> AsyncIterator[CompletionPiece]:
        streams = prompt.is_live or self._findings.timings
        exchange = self._writer.exchange(prompt, streams=streams)
        reader = Reader(prompt.request.logprobs, self._findings.ids)
        if not streams:
            answer = await self._post(exchange)
            yield reader.whole(answer)
            return
        clock = self._endpoint.clock
        begun, first = clock.now(), None
        async with aclosing(self._events(exchange)) as events:
            async for event in events:
                piece = reader.part(event)
                if first is None and piece.text:
                    first = clock.now() - begun
                yield piece
        timed = {"first_text_s": first, "total_s": clock.now() - begun}
        yield CompletionPiece(runtime=timed)

    async def _score(self, span: TokenSpan) -> TokenScore:
        assert self._findings.rung is not None
        return await self._findings.rung.score(span)

    async def _score_pair(self, request: LoglikelihoodRequest) -> LoglikelihoodOutput:
        body = {
            "context": request.context,
            "continuation": request.continuation,
            "context_input_ids": _list(request.context_input_ids),
            "continuation_input_ids": _list(request.continuation_input_ids),
            "messages": request.messages and [dict(message) for message in request.messages],
            "truncation": request.truncation,
        }
        answer = await self._eval("/eval/loglikelihood", body)
        values = _values(answer)
        greedy: Any = answer.get("is_greedy")
        return LoglikelihoodOutput(
            math.fsum(values),
            greedy if isinstance(greedy, bool) else None,
            len(values),
            token_ids=answer.get("token_ids"),
            token_logprobs=values,
            prompt_tokens=answer.get("prompt_tokens"),
            truncated_tokens=answer.get("truncated_tokens"),
        )

    async def _score_text(self, request: RollingLoglikelihoodRequest) -> RollingLoglikelihoodOutput:
        body = {"text": request.text, "input_ids": _list(request.input_ids)}
        answer = await self._eval("/eval/loglikelihood/rolling", body)
        values = _values(answer)
        return RollingLoglikelihoodOutput(
            math.fsum(values),
            len(values),
            token_ids=answer.get("token_ids"),
            token_logprobs=values,
        )

    async def _release(self) -> None:
        await self._endpoint.close()

    def _describe(self) -> dict[str, Any]:
        return self._findings.described

    def _self_check(self) -> CheckResult:
        """What the probe of the scoring ladder found when the session was built."""
        return self._findings.check

    def _prompt(self, request: GenerationRequest) -> RequestPrompt:
        findings = self._findings
        is_chat = (
            isinstance(request, GenerationRequest)  # pyright: ignore[reportUnnecessaryIsInstance]
            and request.messages is not None
            and request.input_ids is None
            and request.rendered_prompt is None
        )
        if findings.api == "chat" and not is_chat:
            self._admission.generation(request)
            raise UnsupportedRequestError(
                "with api='chat' a request needs messages: what a chat model is given for plain "
                "text would be a guess; apply the chat template, or set api to 'completions'"
            )
        if is_chat and not findings.renders:
            self._admission.generation(request)
            if not (request.add_generation_prompt or findings.leaves_open):
                raise UnsupportedRequestError(
                    "the server renders the messages, and may ignore add_generation_prompt=False; "
                    "give rendered_prompt, or a tokenizer_path so that they are rendered here"
                )
            return RequestPrompt(request)
        return super()._prompt(request)

    async def _post(self, exchange: Exchange) -> Any:
        url = f"{self._endpoint.address.api}{exchange.route}"
        return await self._endpoint.post(url, exchange.body, tokens=exchange.tokens)

    def _events(self, exchange: Exchange) -> Any:
        url = f"{self._endpoint.address.api}{exchange.route}"
        return self._endpoint.events(url, exchange.body, tokens=exchange.tokens)

    async def _eval(self, path: str, body: Fields) -> Fields:
        given = {name: value for name, value in body.items() if value is not None}
        url = f"{self._endpoint.address.api}{path}"
        return await self._endpoint.post(url, given, tokens=scoring_cost(given))


def _list(ids: Any) -> list[int] | None:
    return None if ids is None else list(ids)


def _values(answer: Fields) -> list[float]:
    """The answer's token values.

    Raises:
        EngineRuntimeError: there are none, or they aren't as many as it counts.
    """
    listed: Any = answer.get("token_logprobs")
    values = cast("list[Any]", listed) if isinstance(listed, list) else []
    numbers = all(isinstance(value, int | float) and math.isfinite(value) for value in values)
    if not values or not numbers or len(values) != answer.get("token_count"):
        raise EngineRuntimeError(
            f"the answer counts {answer.get('token_count')} tokens and has token_logprobs "
            f"{listed!r}"
        )
    return [float(value) for value in values]
