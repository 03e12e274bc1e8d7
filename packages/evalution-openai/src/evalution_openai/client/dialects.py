"""Dialects: the fields beyond OpenAI's that each kind of server understands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evalution_core import Capability
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
