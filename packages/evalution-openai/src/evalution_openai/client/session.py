"""A model on a server."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from evalution_core import (
    CheckResult,
    ConfigurationError,
    EngineRuntimeError,
    GenerationRequest,
    LoglikelihoodOutput,
    LoglikelihoodRequest,
    Model,
    RollingLoglikelihoodOutput,
    RollingLoglikelihoodRequest,
    UnsupportedRequestError,
)
from evalution_enginekit import (
    CompletionPiece,
    RequestLoop,
    RequestPrompt,
    RequestSession,
    TokenScore,
    TokenSpan,
)
from evalution_enginekit.chat import bound_template, check_variables
from evalution_enginekit.model_source import refuse_model_fields
from evalution_enginekit.tokenizer_files import named_tokenizer
from evalution_openai.client.connection import Endpoint, open_endpoint
from evalution_openai.client.dialects import DIALECTS
from evalution_openai.client.probe import Findings, Survey
from evalution_openai.client.requests import BodyWriter, Exchange, scoring_cost
from evalution_openai.client.responses import Fields, Reader
from evalution_openai.client.retry import Clock, Pressure
from evalution_openai.client.tokenizer import ServedTemplate

if TYPE_CHECKING:
    import httpx

    from evalution_openai.engine import OpenAICompatible


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


_AUTO_DEPTH = 8, 64
"""Requests in flight with "auto": at the beginning, and at most."""
_VARIABLES = "chat_template_kwargs"
_SERVERS = {
    "model_kwargs": (
        "the server loads the model; fields of its requests go into the engine's extra_body"
    ),
    "revision": (
        "the server loads the model, so start it with the revision that is wanted (a tokenizer of "
        "one goes into tokenizer_path as a folder)"
    ),
}
_LOADING = {
    "tokenizer_kwargs": (
        "they are for a tokenizer that is loaded here; name one in tokenizer_path, or leave them "
        "out"
    )
}
"""Of a model whose tokenizer isn't loaded here."""
_NO_TEMPLATE = (
    "the server renders the chat, and its engine gives it no chat template to render with "
    "variables of a request; start the server with these chat_template_kwargs, or with an engine "
    "that gives its chat template, or set tokenizer_path and api='completions' so that chats are "
    "rendered here"
)
"""Of Evalution's server."""


def build_session(
    options: OpenAICompatible,
    model: Model,
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    clock: Clock | None = None,
    chance: random.Random | None = None,
) -> OpenAISession:
    """A session on the server of `options`; raises as `OpenAICompatible.build`.

    `transport`, `clock` and `chance` stand in for the network, time and jitter.
    """
    refuse_model_fields(options, model, _SERVERS)
    check_variables(model.chat_template_kwargs)
    if named_tokenizer(model) is None:
        refuse_model_fields(options, model, _LOADING)
    size = options.batch_size
    start, most = _AUTO_DEPTH if size == "auto" else (size or 1, size or 1)
    endpoint = open_endpoint(options, transport=transport, clock=clock, chance=chance)
    loop = RequestLoop("the OpenAICompatible session", start)
    try:
        survey = Survey(options, model, loop, endpoint)
        _check_variables(options, model, survey)
        endpoint.pressure = Pressure(endpoint.clock, loop.set_depth, start, most)
        return OpenAISession(
            endpoint,
            survey.writer,
            survey.findings(),
            loop=loop,
            most=most,
            tokenizer=survey.tokenizer,
            max_model_len=survey.max_model_len,
            capabilities=survey.capabilities,
            dtype=survey.served.dtype,
            lacking=survey.lacking,
        )
    except BaseException:
        loop.close(endpoint.close)
        raise


def _check_variables(options: OpenAICompatible, model: Model, survey: Survey) -> None:
    """Refuse variables of the chat template that no rendering would heed.

    Raises:
        ConfigurationError: the server renders and isn't known to take them, or refuses them as
            its engine gives it no template, or nobody renders; or they are in `extra_body`, where
            only a server of no known dialect would find them.
    """
    if _VARIABLES in options.extra_body and (survey.renders or survey.dialect.takes_variables):
        raise ConfigurationError(
            f"extra_body has {_VARIABLES}, which have no effect on chats that are rendered here; "
            f"set {_VARIABLES} of the model instead, which hold wherever chats are rendered"
        )
    if not model.chat_template_kwargs:
        return
    template = survey.tokenizer.chat_template if survey.tokenizer is not None else None
    if survey.renders and template is None:
        bound_template(model, None)
    if survey.renders and not isinstance(template, ServedTemplate):
        return
    if not survey.dialect.takes_variables:
        takers = ", ".join(name for name, each in DIALECTS.items() if each.takes_variables)
        remedy = (
            f"the server renders the chat, and one of the dialect {survey.dialect.name!r} isn't "
            f"known to take variables for it; set tokenizer_path and api='completions' so that "
            f"chats are rendered here, the option dialect if it is one of {takers}, or, in "
            f"extra_body, what it takes instead"
        )
        refuse_model_fields(options, model, {_VARIABLES: remedy})
    if survey.takes_no_variables():
        refuse_model_fields(options, model, {_VARIABLES: _NO_TEMPLATE})
