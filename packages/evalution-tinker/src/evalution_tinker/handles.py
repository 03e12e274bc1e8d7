"""What a training loop hands to `attach`: one of three kinds of client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from evalution_core import ConfigurationError
from evalution_tinker.clients import connected, sampling_client, settled

_WANTED = "sampling_client, or training_client, or service_client and model_name"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A sampling client, and what the handles tell of its model."""

    client: Any
    model: str | None
    base_model: str | None


def attachment(handles: object, *, connect_s: float, save_s: float) -> Attachment:
    """The sampling client that `handles` have, or are good for.

    Args:
        handles: a mapping of the kinds that `Tinker.attach` tells.
        connect_s: seconds for making a client.
        save_s: seconds for saving a training client's weights.

    Raises:
        ConfigurationError: they are of another kind; says what was wanted and what came.
        EngineUnavailableError: the server took too long.
    """
    if not isinstance(handles, Mapping):
        raise ConfigurationError(
            f"engine Tinker attaches to handles with {_WANTED}; it got a {type(handles).__name__}"
        )
    given = dict(cast("Mapping[str, Any]", handles))
    base = _text(given.get("model_name"))
    model = _text(given.get("load_checkpoint_path")) or base
    sampling, training = given.get("sampling_client"), given.get("training_client")
    service = given.get("service_client")
    if sampling is not None:
        client = settled(sampling)
        _check(client, "sampling_client", "sample")
    elif training is not None:
        _check(training, "training_client", "save_weights_and_get_sampling_client")
        client = connected(
            lambda: settled(training.save_weights_and_get_sampling_client()), save_s, None
        )
    elif service is not None and model is not None:
        _check(service, "service_client", "create_sampling_client")
        client = connected(lambda: sampling_client(service, model), connect_s, None)
    else:
        raise ConfigurationError(
            f"engine Tinker attaches to handles with {_WANTED}; it got a mapping with "
            f"{', '.join(map(str, given)) or 'nothing'}"
        )
    return Attachment(client, model, base)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _check(client: Any, handle: str, method: str) -> None:
    if not callable(getattr(client, method, None)):
        raise ConfigurationError(
            f"engine Tinker attaches to handles with {_WANTED}; its {handle} must have {method}(), "
            f"got a {type(client).__name__}"
        )
