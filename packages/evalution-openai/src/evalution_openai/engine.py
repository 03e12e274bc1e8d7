"""The engine `OpenAICompatible`: any server with OpenAI's HTTP interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalution_core import (
    BaseEngine,
    ConfigurationError,
    Model,
    validate_options,
)
from evalution_openai.address import Address
from evalution_openai.options import CAPABILITIES, OpenAIOptions

if TYPE_CHECKING:
    from evalution_openai.client.session import OpenAISession


@dataclass(slots=True)
class OpenAICompatible(OpenAIOptions, BaseEngine):
    """A model behind an HTTP endpoint; a session finds out what its server can do.

    Tokenizer: the server's, or `tokenizer_path`.
    Precision: the server's own.
    Ends: the server's own.
    Recorded: `dtype` where the server lists it, `tokenizer`, `eos_ids`.
    """

    capabilities = CAPABILITIES
    is_out_of_process = True

    def __post_init__(self) -> None:
        validate_options(self)
        Address.parse(self.base_url)
        if self.scoring == "stepwise" and not self.stepwise_top:
            raise ConfigurationError(
                "option 'scoring' of engine OpenAICompatible is 'stepwise', which costs a request "
                "for each token; allow it with stepwise_top, the number of tokens that the server "
                "lists at a step (5, say)"
            )

    def default_model(self) -> str | None:
        """Return the first model that the server lists; None where it lists none.

        Raises:
            EngineUnavailableError: no server answers, or none with OpenAI's routes.
        """
        from evalution_openai.client.listing import fetch_default_model  # noqa: PLC0415 - httpx

        return fetch_default_model(self)

    def describe_runtime(self) -> dict[str, Any]:
        import httpx  # noqa: PLC0415 - only where it is used

        return {
            "version": f"httpx {httpx.__version__}",
            "device": None,
            "base_url": self.to_dict()["base_url"],
        }

    def build(self, model: Model) -> OpenAISession:
        """Find out what the server is and which method of scoring is right.

        Raises:
            EngineUnavailableError: no server answers at `base_url`, or none with OpenAI's routes.
            ConfigurationError: the key isn't accepted or its variable isn't set, the server doesn't
                list the model, or no model is named and the server lists none, `max_model_len` is
                more than the server's, or `model` has a field that the server decides (`revision`,
                `model_kwargs`) or isn't known to use (`chat_template_kwargs`).
        """
        from evalution_openai.client.session import build_session  # noqa: PLC0415 - httpx

        return build_session(self, model)
