"""A session on one model of one server."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

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
from evalution_core.requests import FinishReason, TopLogprobs
from evalution_enginekit import (
    CompletionChunk,
    RequestLoop,
    RequestPrompt,
    RequestSession,
    TokenScore,
    TokenSpan,
)
from evalution_enginekit.chat import bind_template, check_variables
from evalution_enginekit.model_source import refuse_model_fields
from evalution_enginekit.planning import take_top
from evalution_enginekit.tokenizer import find_tokenizer_name
from evalution_openai.client.connection import ServerConnection
from evalution_openai.client.dialects import DIALECTS
from evalution_openai.client.probe import ServerProbe
from evalution_openai.client.responses import (
    Fields,
    ResponseReader,
    check_fed,
    read_count,
    read_ids,
    read_logprobs,
    to_list,
)
from evalution_openai.client.retry import AdaptiveConcurrency, Clock
from evalution_openai.client.scoring_methods import read_row
from evalution_openai.client.tokenizer import RemoteTemplate
from evalution_openai.options import OpenAIOptions

if TYPE_CHECKING:
    import httpx


class OpenAISession(RequestSession):
    """Requests for one model of one server, in the forms that `server` takes.

    Args:
        options: the engine's options.
        server: the result of probing the server.
        loop: the loop on which requests run.
        most: the most requests in flight.
    """

    def __init__(
        self,
        options: OpenAIOptions,
        connection: ServerConnection,
        server: ServerProbe,
        loop: RequestLoop,
        most: int,
    ) -> None:
        super().__init__(
            engine="OpenAICompatible",
            capabilities=server.capabilities,
            loop=loop,
            most=most,
            tokenizer=server.tokenizer,
            max_model_len=server.max_model_len,
            encodes=server.encodes,
            dtype=server.listing.dtype,
            lacking=server.lacking,
        )
        self._options = options
        self._connection = connection
        self._server = server

    async def _complete(self, prompt: RequestPrompt) -> AsyncIterator[CompletionChunk]:
        streams = prompt.is_live or self._options.timings
        sent = self._server.writer.to_request(prompt, streams=streams)
        use_of_ids = self._server.choose_use_of_ids(sent.route)
        reader = ResponseReader(prompt.request.logprobs, use_of_ids)
        if not streams:
            answer = await self._connection.post(
                self._url(sent.route), sent.body, tokens=sent.tokens
            )
            chunk = reader.read_answer(answer)
            check_fed(read_ids(sent.body.get("prompt")), chunk.prompt_tokens)
            yield chunk
            return
        clock = self._connection.clock
        begun, first = clock.now(), None
        finish: FinishReason | None = None
        events = self._connection.events(self._url(sent.route), sent.body, tokens=sent.tokens)
        async with aclosing(events):
            async for event in events:
                chunk = reader.read_event(event)
                check_fed(read_ids(sent.body.get("prompt")), chunk.prompt_tokens)
                if first is None and chunk.text:
                    first = clock.now() - begun
                # Some gateways finish each event: BerriAI/litellm#2195, songquanpeng/one-api#1477.
                finish = chunk.finish or finish
                yield replace(chunk, finish=None)
        timed = {"first_text_s": first, "total_s": clock.now() - begun}
        yield CompletionChunk(finish=finish, runtime=timed)

    async def _score(self, span: TokenSpan) -> TokenScore:
        assert self._server.choice.method is not None
        return await self._server.choice.method.score(span)

    async def _score_pair(self, request: LoglikelihoodRequest) -> LoglikelihoodOutput:
        body = {
            "context": request.context,
            "continuation": request.continuation,
            "context_input_ids": _to_list(request.context_input_ids),
            "continuation_input_ids": _to_list(request.continuation_input_ids),
            "messages": request.messages and [dict(message) for message in request.messages],
            "truncation": request.truncation,
            "top_logprobs": request.top_logprobs,
        }
        answer = await self._server.routes.post_api("/eval/loglikelihood", body)
        values = _read_own_values(answer)
        greedy: Any = answer.get("is_greedy")
        return LoglikelihoodOutput(
            math.fsum(values),
            greedy if isinstance(greedy, bool) else None,
            len(values),
            token_ids=read_ids(answer.get("token_ids")),
            token_logprobs=values,
            prompt_tokens=read_count(answer.get("prompt_tokens")),
            truncated_tokens=read_count(answer.get("truncated_tokens")),
            top_logprobs=_read_own_tops(answer, request.top_logprobs, len(values)),
        )

    async def _score_text(self, request: RollingLoglikelihoodRequest) -> RollingLoglikelihoodOutput:
        body = {
            "text": request.text,
            "input_ids": _to_list(request.input_ids),
            "top_logprobs": request.top_logprobs,
        }
        answer = await self._server.routes.post_api("/eval/loglikelihood/rolling", body)
        values = _read_own_values(answer)
        return RollingLoglikelihoodOutput(
            math.fsum(values),
            len(values),
            token_ids=read_ids(answer.get("token_ids")),
            token_logprobs=values,
            top_logprobs=_read_own_tops(answer, request.top_logprobs, len(values)),
        )

    async def _release(self) -> None:
        await self._connection.close()

    def _describe(self) -> dict[str, Any]:
        return self._server.describe()

    def _self_check(self) -> CheckResult:
        """Return the result of the scoring probe, which ran when the session was built."""
        return self._server.choice.check

    def _prompt(self, request: GenerationRequest) -> RequestPrompt:
        server = self._server
        is_chat = (
            isinstance(request, GenerationRequest)  # pyright: ignore[reportUnnecessaryIsInstance]
            and request.messages is not None
            and request.input_ids is None
            and request.rendered_prompt is None
        )
        if self._options.api == "chat" and not is_chat:
            self._validator.check_generation(request)
            raise UnsupportedRequestError(
                "with api='chat' a request needs messages: what a chat model is given for plain "
                "text would be a guess; apply the chat template, or set api to 'completions'"
            )
        if is_chat and not server.renders:
            self._validator.check_generation(request)
            if not (request.add_generation_prompt or server.dialect.returns_ids):
                raise UnsupportedRequestError(
                    "the server renders the messages, and may ignore add_generation_prompt=False; "
                    "give rendered_prompt, or a tokenizer_path so that they are rendered here"
                )
            return RequestPrompt(request)
        return super()._prompt(request)

    def _url(self, route: str) -> str:
        return f"{self._connection.address.api}{route}"


def _to_list(ids: Sequence[int] | None) -> list[int] | None:
    return None if ids is None else list(ids)


def _read_own_values(answer: Fields) -> list[float]:
    count = read_count(answer.get("token_count")) or 1  # nothing is never a score
    return read_logprobs(answer.get("token_logprobs"), count, "token_logprobs")


def _read_own_tops(answer: Fields, asked: int | None, count: int) -> TopLogprobs | None:
    """Read the likeliest tokens of `count` positions, at each as many as there are of `asked`."""
    if asked is None:
        return None
    rows = [read_row(row) for row in to_list(answer.get("top_logprobs"))]
    if len(rows) != count or not all(rows):
        raise EngineRuntimeError(f"top_logprobs: {len(rows)} positions of {count}")
    for row in rows:
        read_logprobs(list(row.values()), len(row), "top_logprobs")
    return [take_top(row, min(asked, len(row))) for row in rows]


_AUTO_DEPTH = 8, 64
"""Requests in flight with "auto" or None: at the beginning, and at most."""
_VARIABLES = "chat_template_kwargs"
_SERVER_FIELDS = {
    "model_kwargs": (
        "the server loads the model; fields of its requests go into the engine's extra_body"
    ),
    "revision": (
        "the server loads the model, so start it with the revision that is wanted (a tokenizer of "
        "one goes into tokenizer_path as a folder)"
    ),
}
_TOKENIZER_FIELDS = {
    "tokenizer_kwargs": (
        "they are for a tokenizer that is loaded here; name one in tokenizer_path, or leave them "
        "out"
    )
}
"""Fields that are refused where no tokenizer is loaded here."""
_NO_TEMPLATE = (
    "the server renders the chat, and its engine gives it no chat template to render with "
    "variables of a request; start the server with these chat_template_kwargs, or with an engine "
    "that gives its chat template, or set tokenizer_path and api='completions' so that chats are "
    "rendered here"
)
"""The refusal of variables by Evalution's server."""


def build_session(
    options: OpenAIOptions,
    model: Model,
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    clock: Clock | None = None,
    chance: random.Random | None = None,
) -> OpenAISession:
    """Build a session on the server of `options`; raises like `OpenAICompatible.build`.

    `transport`, `clock` and `chance` replace the network, time and jitter in tests.
    """
    refuse_model_fields(options, model, _SERVER_FIELDS)
    check_variables(model.chat_template_kwargs)
    if options.extra_body.get("n", 1) not in (1, None):
        raise ConfigurationError(
            f"extra_body has n={options.extra_body['n']!r}, and one answer of each request is "
            "read; leave it out, and send a request as often as answers are wanted"
        )
    if find_tokenizer_name(model) is None:
        refuse_model_fields(options, model, _TOKENIZER_FIELDS)
    size = options.batch_size
    start, most = _AUTO_DEPTH if size in ("auto", None) else (size or 1, size or 1)
    connection = ServerConnection(options, transport=transport, clock=clock, chance=chance)
    loop = RequestLoop("the OpenAICompatible session", start)
    try:
        server = ServerProbe(options, model, loop, connection)
        _check_variables(options, model, server)
        connection.concurrency = AdaptiveConcurrency(connection.clock, loop.set_depth, start, most)
        return OpenAISession(options, connection, server, loop, most)
    except BaseException:
        loop.close(connection.close)
        raise


def _check_variables(options: OpenAIOptions, model: Model, probe: ServerProbe) -> None:
    """Refuse variables of the chat template that no rendering would use.

    Raises:
        ConfigurationError: the server renders and isn't known to take them, or refuses them
            because its engine gives it no template, or nothing renders; or they are in
            `extra_body`, which only servers of an unknown dialect would read.
    """
    if _VARIABLES in options.extra_body and (probe.renders or probe.dialect.takes_variables):
        raise ConfigurationError(
            f"extra_body has {_VARIABLES}, which have no effect on chats that are rendered here; "
            f"set {_VARIABLES} of the model instead, which hold wherever chats are rendered"
        )
    if not model.chat_template_kwargs:
        return
    template = probe.tokenizer.chat_template if probe.tokenizer is not None else None
    if probe.renders and template is None:
        bind_template(model, None)
    if probe.renders and not isinstance(template, RemoteTemplate):
        return
    if not probe.dialect.takes_variables:
        takers = ", ".join(name for name, each in DIALECTS.items() if each.takes_variables)
        remedy = (
            f"the server renders the chat, and one of the dialect {probe.dialect.name!r} isn't "
            f"known to take variables for it; set tokenizer_path and api='completions' so that "
            f"chats are rendered here, the option dialect if it is one of {takers}, or, in "
            f"extra_body, what it takes instead"
        )
        refuse_model_fields(options, model, {_VARIABLES: remedy})
    if probe.refuses_variables():
        refuse_model_fields(options, model, {_VARIABLES: _NO_TEMPLATE})
