"""The engine `Tinker`: a model on any server that speaks the Tinker protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    Model,
    validate_options,
)
from evalution_tinker.options import TinkerOptions

if TYPE_CHECKING:
    from evalution_tinker.session import TinkerSession

TINKER_CAPABILITIES = frozenset(Capability) - {
    Capability.BEAMS,
    Capability.MULTIMODAL,
    Capability.STREAM,
    Capability.DISTRIBUTIONS,
}


@dataclass(slots=True)
class Tinker(TinkerOptions, BaseEngine):
    """A base model of a Tinker-compatible server, or weights that were trained on it.

    `model.path` is the server's name of a base model, or `tinker://…` for saved weights; without
    it, the first model that the server lists. Prompts are encoded in this process.

    Tokenizer: that of the base model on the Hub, or `tokenizer_path`.
    Precision: the server's own.
    Ends: as the tokenizer and its folder declare.
    Recorded: `tokenizer`, `eos_ids`.
    """

    capabilities = TINKER_CAPABILITIES
    is_out_of_process = True

    def __post_init__(self) -> None:
        validate_options(self)
        if not self.api_key_env.isidentifier():
            raise ConfigurationError(
                "option 'api_key_env' of engine Tinker must be the name of an environment "
                "variable; put the key into TINKER_API_KEY and leave the option out"
            )

    def default_model(self) -> str | None:
        """Return the first model that the server lists.

        Raises:
            EngineUnavailableError: no server answers.
        """
        from evalution_tinker.runtime import find_server  # noqa: PLC0415 - imported on use

        return next(iter(find_server(self).models), None)

    def describe_runtime(self) -> dict[str, Any]:
        from evalution_tinker.runtime import (  # noqa: PLC0415 - imported on use
            import_tinker,
            read_client_version,
        )

        import_tinker()
        return {
            "version": f"tinker {read_client_version()}",
            "device": None,
            "base_url": self.to_dict()["base_url"],
        }

    def build(self, model: Model) -> TinkerSession:
        """Build a session, after asking the server for a sign of life and probing it.

        Raises:
            EngineUnavailableError: tinker isn't installed, no server answers in time, or client
                and server speak versions of the protocol that don't meet.
            ConfigurationError: the key isn't set or accepted, the server has no such model, or no
                tokenizer is found.
        """
        from evalution_tinker.load import build_session  # noqa: PLC0415 - imported on use

        return build_session(self, self.capabilities, model)

    def attach(self, handles: Mapping[str, Any], model: Model | None = None) -> TinkerSession:
        """Build a session on the model of a client that the caller keeps and closes.

        `handles` have a `sampling_client`; or a `training_client`, whose weights of this moment
        are saved for the session; or a `service_client` and `model_name`, as the training backend
        `tinker` prepares them, whose `load_checkpoint_path`, else `init_from_checkpoint`, takes
        the place of `model_name`'s weights.

        Raises:
            ConfigurationError: the handles are of another kind; names what is accepted and given.
        """
        from evalution_tinker.load import attach_session  # noqa: PLC0415 - imported on use

        return attach_session(self, self.capabilities, handles, model)
