"""Bodies of completion and chat requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from evalution_core import GenerationRequest
from evalution_enginekit.completion import RequestPrompt
from evalution_openai.client.dialects import Dialect

_CHARACTERS_A_TOKEN = 4
"""A rough guess for the rate limit where the prompt's tokens aren't known."""


@dataclass(frozen=True, slots=True)
class HTTPRequest:
    """A route under `/v1` and its body; `tokens` count against the tokens a minute."""

    route: Literal["/completions", "/chat/completions"]
    body: dict[str, Any]
    tokens: int

    @property
    def is_chat(self) -> bool:
        return self.route == "/chat/completions"


class BodyWriter:
    """Writes bodies for one model on one server.

    Defaults of the server are switched off, so that a request means the same as on any engine:
    greedy is the likeliest token, and `top_k=0` cuts nothing.

    Args:
        extra: fields that take precedence over all others; None removes one.
        variables: variables of the chat template, where the server renders the messages.
    """

    def __init__(
        self,
        model: str,
        dialect: Dialect,
        extra: Mapping[str, Any],
        variables: Mapping[str, Any] | None = None,
    ):
        self._model = model
        self._dialect = dialect
        self._extra = dict(extra)
        self._variables = dict(variables or {})

    def to_request(self, prompt: RequestPrompt, *, streams: bool) -> HTTPRequest:
        """Make a completion request for ids and text, a chat request for messages."""
        request = prompt.request
        if prompt.token_ids is None and prompt.text is None:
            body = {"messages": [dict(message) for message in request.messages or ()]}
            body |= {self._dialect.limit_field: request.max_new_tokens}
            if request.logprobs is not None:
                body |= {"logprobs": True, "top_logprobs": request.logprobs}
            if not request.add_generation_prompt:
                body |= {"add_generation_prompt": False}
            if self._variables:
                body |= {"chat_template_kwargs": self._variables}
            route = "/chat/completions"
        else:
            fed = prompt.text if prompt.token_ids is None else list(prompt.token_ids)
            body = {"prompt": fed, "max_tokens": request.max_new_tokens}
            if request.logprobs is not None:
                body |= {"logprobs": request.logprobs}
            route = "/completions"
        body |= self._settings(request)
        if streams:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return HTTPRequest(route, self.complete_body(body), _count_prompt_tokens(prompt))

    def complete_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Add the model, the dialect's neutral fields and the extra ones to `body`."""
        whole = {"model": self._model, **self._dialect.neutral, **body, **self._extra}
        return {name: value for name, value in whole.items() if value is not None}

    def _settings(self, request: GenerationRequest) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "temperature": request.temperature if request.do_sample else 0.0
        }
        if request.do_sample:
            settings["top_p"] = request.top_p
            if request.top_k:
                settings["top_k"] = request.top_k
            settings["seed"] = request.seed
        if stops := list(request.stop)[: self._dialect.most_stops]:
            settings["stop"] = stops
        if request.ignore_eos:
            settings["ignore_eos"] = True
        if self._dialect.returns_ids:
            settings["return_token_ids"] = True
            if request.logprobs is not None:
                settings["return_tokens_as_token_ids"] = True
        if self._dialect.is_evalution:
            settings["truncation"] = request.truncation
        return settings


def count_scoring_tokens(body: Mapping[str, Any]) -> int:
    """Count the tokens of a scoring body: the ids in its fields, and an estimate of its texts."""
    texts = sum(len(value) for value in body.values() if isinstance(value, str))
    ids = sum(len(cast("list[int]", value)) for value in body.values() if isinstance(value, list))
    return ids + texts // _CHARACTERS_A_TOKEN + 1


def _count_prompt_tokens(prompt: RequestPrompt) -> int:
    request = prompt.request
    if prompt.token_ids is not None:
        fed = len(prompt.token_ids)
    else:
        text = prompt.text or "".join(str(m.get("content")) for m in request.messages or ())
        fed = len(text) // _CHARACTERS_A_TOKEN
    return fed + request.max_new_tokens
