"""The engine `Tinker`: any server that speaks the Tinker protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    Model,
    hide,
    speed_only,
    validate_options,
)
from evalution_enginekit import import_runtime

if TYPE_CHECKING:
    from evalution_tinker.session import TinkerSession

TINKER = ">=0.24.1"
LONGEST_S = 86_400
"""A day: no clock of a socket or a thread overflows."""

TINKER_CAPABILITIES = frozenset(Capability) - {
    Capability.BEAMS,
    Capability.TOOLS,
    Capability.MULTIMODAL,
    Capability.STREAM,
}


@dataclass(slots=True)
class Tinker(BaseEngine):
    """A base model of a Tinker-compatible server, or weights that were trained on it.

    `model.path` is the server's name of a base model, or `tinker://…` for saved weights; without
    it, the first model that the server lists. Prompts are encoded here.

    Options:
        base_url: the server; None is the environment's `TINKER_BASE_URL`, else the hosted service.
        api_key_env: name of the environment variable that holds the key, read when a session is
            built. The client takes texts that begin with `tml-`, also for a server that asks for
            none.
        tokenizer_path: folder, file or Hub id of the tokenizer; None: `model.tokenizer_path`, else
            the model's name, which then is a folder here or a Hub id.
        max_model_len: tokens the model is fed at most; None: what the server tells.
        timeout_s: seconds in which the server must give its first sign of life.
        request_timeout_s: seconds for a request, with the client's own retries.
        batch_size: requests in flight, each refilled at once when one is answered.
    """

    base_url: str | None = None
    api_key_env: str = speed_only(default="TINKER_API_KEY")
    tokenizer_path: str | None = None
    max_model_len: int | None = None
    timeout_s: float = speed_only(default=90.0)
    request_timeout_s: float = speed_only(default=300.0)
    batch_size: int = speed_only(default=8)

    capabilities = TINKER_CAPABILITIES

    def __post_init__(self) -> None:
        validate_options(self)
        for name, least in (("max_model_len", 2), ("batch_size", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigurationError(
                    f"option {name!r} of engine Tinker must be at least {least}, got {value!r}"
                )
        for name in ("timeout_s", "request_timeout_s"):
            value = getattr(self, name)
            if not 0 < value <= LONGEST_S:
                raise ConfigurationError(
                    f"option {name!r} of engine Tinker must be above 0 and at most {LONGEST_S} "
                    f"seconds, got {value!r}"
                )
        if not self.api_key_env.isidentifier():
            hide(self.api_key_env, is_secret=True)
            raise ConfigurationError(
                "option 'api_key_env' of engine Tinker is the name of an environment variable, "
                "which what was given can't be; put the key into TINKER_API_KEY and leave it out"
            )

    def default_model(self) -> str | None:
        """The first model that the server lists.

        Raises:
            EngineUnavailableError: no server answers.
        """
        from evalution_tinker.server import found_server  # noqa: PLC0415 - for use alone

        return next(iter(found_server(self).models), None)

    def describe_runtime(self) -> dict[str, Any]:
        _tinker()
        from evalution_tinker.server import client_version  # noqa: PLC0415 - for use alone

        return {
            "version": client_version(),
            "device": None,
            "base_url": self.to_dict()["base_url"],
        }

    def build(self, model: Model) -> TinkerSession:
        """Ask the server for a sign of life, for the model, and what it tells of prompts.

        Raises:
            EngineUnavailableError: tinker isn't installed, no server answers in time, or client
                and server speak versions of the protocol that don't meet.
            ConfigurationError: the key isn't set or accepted, the server has no such model, or no
                tokenizer is found.
        """
        tinker = _tinker()
        from evalution_tinker.building import built_session  # noqa: PLC0415 - for use alone

        return built_session(tinker, self, model)

    def attach(self, handles: Mapping[str, Any], model: Model | None = None) -> TinkerSession:
        """A session on the model of somebody else's client, which stays open.

        `handles` have a `sampling_client`; or a `training_client`, whose weights of this moment
        are saved for the session; or a `service_client` and `model_name`, as the training backend
        `tinker` prepares them.

        Raises:
            ConfigurationError: the handles are of another kind; says what was wanted and what came.
        """
        tinker = _tinker()
        from evalution_tinker.building import attached_session  # noqa: PLC0415 - for use alone

        return attached_session(tinker, self, handles, model)


def _tinker() -> Any:
    return import_runtime("tinker", TINKER, install="pip install evalution-tinker")
