"""The model that an engine builds a session for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from evalution_core.errors import ConfigurationError
from evalution_core.redaction import redact, redact_fields, redact_repr


@dataclass(frozen=True, slots=True)
class Model:
    """Weights and tokenizer by name.

    `path` is `builtin:<name>`, a local path, a Hub id or the name of a remote model, looked up in
    that order; None only for an engine whose `default_model()` can answer.
    `tokenizer` and `tokenizer_path` replace the tokenizer that lies beside the weights.
    `chat_template_kwargs` are further variables of the chat template, beside those that it always
    gets, such as `enable_thinking`: text, numbers, true, false, null, and lists and
    mappings of them.
    """

    path: Annotated[
        str | None,
        Field(
            description="Weights: builtin:<name>, a local path, a Hub id or a remote model's name; "
            "None takes the engine's default model."
        ),
    ] = None
    label: Annotated[
        str | None, Field(description="Name of the model in results; None takes the path.")
    ] = None
    tokenizer: Annotated[
        Any, Field(description="Tokenizer object, from Python only; None takes the model's own.")
    ] = None
    tokenizer_path: Annotated[
        str | None,
        Field(description="Folder or Hub id of another tokenizer; None takes the model's own."),
    ] = None
    revision: Annotated[
        str | None, Field(description="Commit, tag or branch on the Hub; None takes the newest.")
    ] = None
    trust_remote_code: Annotated[
        bool, Field(description="Run Python code that comes with the model.")
    ] = False
    model_kwargs: Annotated[
        Mapping[str, Any], Field(description="Arguments for the runtime's loading of the model.")
    ] = field(default_factory=dict[str, Any])
    tokenizer_kwargs: Annotated[
        Mapping[str, Any], Field(description="Arguments for the loading of the tokenizer.")
    ] = field(default_factory=dict[str, Any])
    chat_template_kwargs: Annotated[
        Mapping[str, Any],
        Field(description="Variables of the chat template, such as enable_thinking."),
    ] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        for name in ("path", "label", "tokenizer_path", "revision"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigurationError(f"model.{name} must be a non-empty string, got {value!r}")
        for name in ("model_kwargs", "tokenizer_kwargs", "chat_template_kwargs"):
            if not isinstance(value := getattr(self, name), Mapping):
                raise ConfigurationError(f"model.{name} must be a mapping, got {redact(value)!r}")
        if type(self.trust_remote_code) is not bool:
            raise ConfigurationError(
                f"model.trust_remote_code must be true or false, got {self.trust_remote_code!r}"
            )

    def __repr__(self) -> str:
        return redact_repr(self)

    @property
    def name(self) -> str:
        """The label, else the path, without credentials."""
        return str(redact(self.label or self.path or "(the runtime's default model)"))

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON-safe values; secrets are redacted, a tokenizer object is its class."""
        return redact_fields(self)
