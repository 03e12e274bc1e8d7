"""The params of a backend, validated before there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from evalution_core import ConfigurationError, did_you_mean, hide, redact
from evalution_core.redaction import is_secret_name


def validated_params(config: type[BaseModel], params: Mapping[str, Any], what: str) -> BaseModel:
    """`params` as the backend's `Config`; `what` is the backend's name in messages.

    An unknown name is refused whether `Config` forbids it or not. Credentials among the values are
    kept out of every text from here on.

    Raises:
        ConfigurationError: a name is unknown, with the nearest one, or a value doesn't fit.
    """
    if not isinstance(params, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"params of backend {what!r} must be a mapping of names to values, got a "
            f"{type(params).__name__}"
        )
    hide(dict(params))
    known = [field.alias or name for name, field in config.model_fields.items()]
    for name in params:
        if name not in known and name not in config.model_fields:
            raise ConfigurationError(
                f"backend {what!r} has no param {name!r}{did_you_mean(str(name), known)} "
                f"(params: {', '.join(known) or 'none'})"
            )
    try:
        return config.model_validate(dict(params))
    except ValidationError as error:
        complaints = "; ".join(
            f"param {_place(fault['loc'])} of backend {what!r}: {fault['msg']}{_got(fault)}"
            for fault in error.errors(include_url=False)
        )
        raise ConfigurationError(complaints) from None


def _place(location: tuple[int | str, ...]) -> str:
    return repr(".".join(str(part) for part in location))


def _got(fault: Any) -> str:
    if fault["type"] == "missing" or any(is_secret_name(str(part)) for part in fault["loc"]):
        return ""
    return f", got {redact(fault['input'])!r}"
