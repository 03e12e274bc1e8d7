"""What servers of one kind understand beyond OpenAI's fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from evalution_core import Capability

DialectName = Literal["auto", "evalution", "vllm", "sglang", "llamacpp", "openai", "plain"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server.

    `tells_ids`: `return_token_ids` and `return_tokens_as_token_ids`, as vLLM has them. `most_stops`
    is how many stop strings it takes; None: any number. `limit_field` is what chat calls
    `max_tokens`. `native` are capabilities that its own extensions give.
    """

    name: str
    tells_ids: bool = False
    most_stops: int | None = None
    limit_field: str = "max_tokens"
    native: frozenset[Capability] = frozenset()

    @property
    def is_evalution(self) -> bool:
        return self.name == "evalution"


DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect("evalution", tells_ids=True),
        Dialect("vllm", tells_ids=True, native=frozenset({Capability.SEED, Capability.IGNORE_EOS})),
        Dialect("sglang", native=frozenset({Capability.IGNORE_EOS})),
        Dialect("llamacpp", native=frozenset({Capability.IGNORE_EOS})),
        Dialect("openai", most_stops=4, limit_field="max_completion_tokens"),
        Dialect("plain", most_stops=4),
    )
}


def dialect_of(name: DialectName, owner: Any, host: str) -> Dialect:
    """The dialect that was asked for, else the one that the server's `owned_by` or host tells."""
    if name != "auto":
        return DIALECTS[name]
    if host == "api.openai.com":
        return DIALECTS["openai"]
    known = isinstance(owner, str) and owner in DIALECTS and owner != "openai"
    return DIALECTS[owner] if known else DIALECTS["plain"]
