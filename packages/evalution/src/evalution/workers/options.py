"""How patiently workers are supervised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evalution_core import ConfigurationError, validate_options


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """When a worker counts as hung or broken, and how it is started again.

    Options:
        request_timeout: seconds a request may go without progress once the engine has it: its next
            token where the engine streams, else its answer. A list call of n requests may take n
            times that. None: for ever.
        build_timeout: seconds for loading the model. None: for ever.
        heartbeat_timeout: seconds a worker with a loaded model may be silent. It is silent while
            one native call holds Python's lock. None: for ever.
        restarts: how often in a row a worker may end without having answered anything until it is
            given up.
        backoff: seconds before the second restart in a row; doubled for each one after it.
        close_timeout: seconds for releasing the model until the worker is killed.
    """

    declared_as: ClassVar[str] = "worker options"

    request_timeout: float | None = None
    build_timeout: float | None = None
    heartbeat_timeout: float | None = 120.0
    restarts: int = 8
    backoff: float = 0.5
    close_timeout: float = 30.0

    def __post_init__(self) -> None:
        validate_options(self)  # pyright: ignore[reportArgumentType] - asks for __name__ too
        for name in ("request_timeout", "build_timeout", "heartbeat_timeout", "close_timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(
                    f"{name} must be a number of seconds above 0, or left out, got {value!r}"
                )
        for name in ("restarts", "backoff"):
            if (value := getattr(self, name)) < 0:
                raise ConfigurationError(f"{name} must be at least 0, got {value!r}")
