"""What servers of one kind understand beyond OpenAI's fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from evalution_core import Capability

DialectName = Literal[
    "auto", "evalution", "vllm", "sglang", "llamacpp", "llama-cpp-python", "openai", "plain"
]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server.

    `tells_ids`: `return_token_ids` and `return_tokens_as_token_ids`, as vLLM has them. `most_stops`
    is how many stop strings it takes; None: any number. `limit_field` is what chat calls
    `max_tokens`. `native` are capabilities that its own extensions give. `neutral` are the fields
    that switch off what it would apply unasked, such as a penalty of the model's
    `generation_config.json`; empty: there are no such fields, or it refuses those that it doesn't
    know. `takes_variables`: where it renders messages, it heeds `chat_template_kwargs`.
    """

    name: str
    tells_ids: bool = False
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
        """Whose settings hold where a request names none."""
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
"""What the server's own flags and the model's file can set; an older server ignores the rest."""
_NEUTRAL_LLAMA_CPP_PYTHON: Mapping[str, Any] = {"repeat_penalty": 1.0, "min_p": 0.0, "top_k": 0}
"""It penalises repetition by 1.1 unless told otherwise; nothing else is on by default."""

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect("evalution", tells_ids=True, takes_variables=True),
        Dialect(
            "vllm",
            tells_ids=True,
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
"""Whose `owned_by` isn't the name of its dialect."""


def dialect_of(name: DialectName, owner: Any, host: str) -> Dialect:
    """The dialect that was asked for, else the one that the server's `owned_by` or host tells."""
    if name != "auto":
        return DIALECTS[name]
    if host == "api.openai.com":
        return DIALECTS["openai"]
    told = _OWNERS.get(owner, owner) if isinstance(owner, str) else "plain"
    return DIALECTS[told] if told in DIALECTS and told != "openai" else DIALECTS["plain"]


def unasked_fields(body: Mapping[str, Any], text: str) -> list[str]:
    """Fields of a request's body that `text` names, and that only a dialect put there."""
    return [
        name
        for name, value in body.items()
        if any(name in d.neutral and d.neutral[name] == value for d in DIALECTS.values())
        and re.search(rf"\b{name}\b", text)
    ]
