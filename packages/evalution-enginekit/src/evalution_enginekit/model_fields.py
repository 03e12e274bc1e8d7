"""Fields of a `Model` that an engine has no use for."""

from __future__ import annotations

from collections.abc import Mapping

from evalution_core import BaseEngine, ConfigurationError, Model


def refuse_model_fields(engine: BaseEngine, model: Model, remedies: Mapping[str, str]) -> None:
    """Refuse what would be ignored.

    Args:
        remedies: by the name of a field, what to do instead.

    Raises:
        ConfigurationError: one of these fields is set.
    """
    for name, remedy in remedies.items():
        if getattr(model, name):
            raise ConfigurationError(
                f"engine {type(engine).__name__} takes no model.{name}: {remedy}"
            )


def refuse_gguf_model_fields(engine: BaseEngine, model: Model, parameters: str) -> None:
    """The same for an engine that reads GGUF files; `parameters` is where those of it go."""
    remedies = {"model_kwargs": parameters}
    if model.tokenizer_path is None:
        remedies["tokenizer_kwargs"] = "a file's own tokenizer takes none; set tokenizer_path too"
    refuse_model_fields(engine, model, remedies)
