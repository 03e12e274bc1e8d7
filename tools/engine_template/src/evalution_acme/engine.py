"""The engine Acme: its options, and the building of a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from evalution_acme.session import AcmeSession
from evalution_core import BaseEngine, Capability, ConfigurationError, Model, speed_only
from evalution_enginekit import ByteTokenizer, bind_tokenizer, import_runtime, runtime_errors

CAPABILITIES = frozenset(
    {
        Capability.GENERATE,
        Capability.CHAT,
        Capability.LOGLIKELIHOOD,
        Capability.ROLLING,
        Capability.TOKEN_IDS,
        Capability.LOGPROBS,
        Capability.IGNORE_EOS,
        Capability.TRUNCATION,
        Capability.STREAM,
        Capability.CONTINUOUS_BATCHING,
    }
)


@dataclass(slots=True)
class Acme(BaseEngine):
    """Models that Acme loads."""

    device: Annotated[str, Field(description="Device that the model runs on.")] = "cpu"
    max_model_len: Annotated[int, Field(ge=2, description="Tokens the model is fed at most.")] = 512
    batch_size: Annotated[int, Field(ge=1, description="Sequences that generate side by side.")] = (
        speed_only(default=8)
    )

    contract = 1
    capabilities = CAPABILITIES

    def build(self, model: Model) -> AcmeSession:
        """Load the model.

        Raises:
            ConfigurationError: no model is named.
            EngineUnavailableError: Acme is missing or too old.
        """
        if model.path is None:
            raise ConfigurationError("engine Acme needs model.path")
        acme = import_runtime("acme", ">=1.0", install="pip install acme")
        with runtime_errors(f"loading {model.name}"):
            loaded = acme.load(model.path, device=self.device)
        return AcmeSession(
            loaded,
            # For a model with files of its own: load_tokenizer(model, folder).
            tokenizer=bind_tokenizer(model, ByteTokenizer()),
            capabilities=CAPABILITIES,
            device=self.device,
            max_model_len=self.max_model_len,
            batch_size=self.batch_size,
        )
