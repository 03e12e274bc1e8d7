"""From options to a session."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from evalution_core import ConfigurationError, Model
from evalution_enginekit import RequestLoop
from evalution_enginekit.chat import bound_template, check_variables
from evalution_enginekit.model_source import refuse_model_fields
from evalution_enginekit.tokenizer_files import named_tokenizer
from evalution_openai.connection import open_endpoint
from evalution_openai.dialects import DIALECTS
from evalution_openai.pressure import Pressure
from evalution_openai.remote_tokenizer import ServedTemplate
from evalution_openai.retrying import Clock
from evalution_openai.session import OpenAISession
from evalution_openai.survey import Survey

if TYPE_CHECKING:
    import httpx

    from evalution_openai.engine import OpenAICompatible

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
