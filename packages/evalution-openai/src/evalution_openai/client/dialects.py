"""Dialects: the fields beyond OpenAI's that each kind of server understands, and bodies in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from evalution_core import Capability, GenerationRequest
from evalution_enginekit.completion import RequestPrompt
from evalution_openai.options import DialectName


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server.

    Attributes:
        returns_ids: it takes `return_token_ids` and `return_tokens_as_token_ids`, as vLLM does.
        most_stops: the number of stop strings that it takes; None: any number.
        limit_field: the name of `max_tokens` in chat requests.
        native: capabilities that its own extensions give.
        neutral: fields that switch off defaults of the server, such as a penalty of the model's
            `generation_config.json`. Empty: there are none, or it refuses unknown fields.
        takes_variables: it renders messages with the request's `chat_template_kwargs`.
    """

    name: str
    returns_ids: bool = False
    most_stops: int | None = None
    limit_field: str = "max_tokens"
    native: frozenset[Capability] = frozenset()
    neutral: Mapping[str, Any] = field(default_factory=dict[str, Any])
    takes_variables: bool = False

    @property
    def is_evalution(self) -> bool:
        return self.name == "evalution"

    @property
    def sampling_defaults(self) -> str:
        """Return the settings that apply where a request names none."""
        return "neutral" if self.neutral or self.is_evalution else "the server's"


_NEUTRAL: Mapping[str, Any] = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_p": 0.0,
    "top_k": -1,  # older vLLM refuses 0
}
_NEUTRAL_LLAMA_CPP: Mapping[str, Any] = {
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "logit_bias": [],
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "dynatemp_range": 0.0,
    "mirostat": 0,
    "adaptive_target": -1.0,
}
"""Everything that the server's flags and the model's file can set; an older one ignores more."""
_NEUTRAL_LLAMA_CPP_PYTHON: Mapping[str, Any] = {"repeat_penalty": 1.0, "min_p": 0.0, "top_k": 0}
"""Its repetition penalty is 1.1 by default; everything else is off."""

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect("evalution", returns_ids=True, takes_variables=True),
        Dialect(
            "vllm",
            returns_ids=True,
            native=frozenset({Capability.SEED, Capability.IGNORE_EOS}),
            neutral=_NEUTRAL,
            takes_variables=True,
        ),
        Dialect(
            "sglang",
            native=frozenset({Capability.IGNORE_EOS}),
            neutral=_NEUTRAL,
            takes_variables=True,
        ),
        Dialect(
            "llamacpp",
            native=frozenset({Capability.IGNORE_EOS}),
            neutral=_NEUTRAL_LLAMA_CPP,
            takes_variables=True,
        ),
        Dialect("llama-cpp-python", neutral=_NEUTRAL_LLAMA_CPP_PYTHON),
        Dialect("openai", most_stops=4, limit_field="max_completion_tokens"),
        Dialect("plain", most_stops=4),
    )
}

_OWNERS = {"me": "llama-cpp-python"}
"""Dialects by `owned_by`, where that isn't the name of the dialect."""


def find_dialect(name: DialectName, owner: Any, host: str) -> Dialect:
    """Find the dialect: the option, else by the host or the server's `owned_by`."""
    if name != "auto":
        return DIALECTS[name]
    if host == "api.openai.com":
        return DIALECTS["openai"]
    found = _OWNERS.get(owner, owner) if isinstance(owner, str) else "plain"
    return DIALECTS[found] if found in DIALECTS and found != "openai" else DIALECTS["plain"]


def find_unasked_fields(body: Mapping[str, Any], text: str) -> list[str]:
    """Return the fields of a body that `text` names and that were added by the dialect."""
    return [
        name
        for name, value in body.items()
        if any(name in d.neutral and d.neutral[name] == value for d in DIALECTS.values())
        and re.search(rf"\b{name}\b", text)
    ]


_CHARACTERS_A_TOKEN = 4
"""A rough guess for the rate limit where the prompt's tokens aren't known."""


@dataclass(frozen=True, slots=True)
class HTTPRequest:
    """A route under `/v1` and its body; `tokens` count against the tokens a minute."""

    route: Literal["/completions", "/chat/completions"]
    body: dict[str, Any]
    tokens: int


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
