"""What is sent: a prompt as the fields of a completion or chat request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from evalution_core import GenerationRequest
from evalution_enginekit.completion import RequestPrompt
from evalution_openai.client.dialects import Dialect

_CHARACTERS_A_TOKEN = 4
"""For the rate limit alone: a rough guess where the prompt's tokens aren't known."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A route under `/v1`, and the body that goes there; `tokens` is what it may cost."""

    route: Literal["/completions", "/chat/completions"]
    body: dict[str, Any]
    tokens: int

    @property
    def is_chat(self) -> bool:
        return self.route == "/chat/completions"


class BodyWriter:
    """Writes bodies for one model on one server; `extra` fields win, and a None takes one out.

    `variables` are for the chat template, where the server renders the messages.
    What a server would apply unasked is switched off in each, so that a request means the same as
    on any engine: greedy is the likeliest token, and `top_k=0` cuts nothing.
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

    def exchange(self, prompt: RequestPrompt, *, streams: bool) -> Exchange:
        """Completions for ids and text, chat for messages that the server is to render."""
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
        return Exchange(route, self.written(body), _cost(prompt))

    def written(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """`body` with the model, the dialect's neutral fields and the extra ones."""
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
        if self._dialect.tells_ids:
            settings["return_token_ids"] = True
            if request.logprobs is not None:
                settings["return_tokens_as_token_ids"] = True
        if self._dialect.is_evalution:
            settings["truncation"] = request.truncation
        return settings


def scoring_cost(body: Mapping[str, Any]) -> int:
    """Tokens that scoring a body may cost: the ids in its fields, or what its texts come to."""
    texts = sum(len(value) for value in body.values() if isinstance(value, str))
    ids = sum(len(cast("list[int]", value)) for value in body.values() if isinstance(value, list))
    return ids + texts // _CHARACTERS_A_TOKEN + 1


def _cost(prompt: RequestPrompt) -> int:
    request = prompt.request
    if prompt.token_ids is not None:
        fed = len(prompt.token_ids)
    else:
        text = prompt.text or "".join(str(m.get("content")) for m in request.messages or ())
        fed = len(text) // _CHARACTERS_A_TOKEN
    return fed + request.max_new_tokens
