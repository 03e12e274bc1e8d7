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
