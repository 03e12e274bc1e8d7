"""The engine CTranslate2: its options, and the building of a session."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from evalution_core import BaseEngine, Capability, ConfigurationError, Model, speed_only
from evalution_enginekit import import_runtime, load_tokenizer, model_identity, runtime_errors
from evalution_enginekit.model_source import refuse_model_fields

from .session import CTranslate2Session

CAPABILITIES = frozenset(
    {
        Capability.GENERATE,
        Capability.CHAT,
        Capability.LOGLIKELIHOOD,
        Capability.ROLLING,
        Capability.TOKEN_IDS,
        Capability.SAMPLING,
        Capability.LOGPROBS,
        Capability.IGNORE_EOS,
        Capability.TRUNCATION,
        Capability.STREAM,
    }
)
WEIGHTS = ("model.bin", "vocabulary.json")
"""Files that the identity of a model is made of, besides its configuration and tokenizer."""


@dataclass(slots=True)
class CTranslate2(BaseEngine):
    """Decoder models that ct2-transformers-converter has converted, on a CPU."""

    compute_type: Annotated[
        str, Field(description="CTranslate2's name of the arithmetic; default: as converted.")
    ] = "default"
    max_model_len: Annotated[
        int, Field(ge=2, description="Tokens the model is fed at most; its files don't say it.")
    ] = 2048
    batch_size: Annotated[int, Field(ge=1, description="Prompts of a batch.")] = speed_only(
        default=16
    )
    threads: Annotated[int, Field(ge=0, description="0: CTranslate2 chooses.")] = speed_only(
        default=0
    )

    # The version of the contract that this engine was written for.
    contract = 1
    capabilities = CAPABILITIES

    def describe_runtime(self) -> dict[str, Any]:
        """Return the version of CTranslate2; no model is loaded.

        Raises:
            EngineUnavailableError: CTranslate2 is missing, or of another version.
        """
        return {"version": f"ctranslate2 {_import_ctranslate2().__version__}", "device": "cpu"}

    def build(self, model: Model) -> CTranslate2Session:
        """Load a converted model.

        Raises:
            ConfigurationError: the folder holds no converted model, or no tokenizer.
            EngineUnavailableError: CTranslate2 is missing, or of another version.
        """
        remedies = {"revision": "name a folder", "model_kwargs": "use the engine's options"}
        refuse_model_fields(self, model, remedies)
        folder = Path(model.path or "")
        if not (folder / "model.bin").is_file():
            raise ConfigurationError(
                f"{model.path!r} holds no model of CTranslate2, which is a folder with model.bin; "
                "make one with ct2-transformers-converter, and --copy_files for its tokenizer"
            )
        ctranslate2 = _import_ctranslate2()
        vocabulary: list[str] = json.loads((folder / "vocabulary.json").read_text("utf-8"))
        with runtime_errors(f"loading {model.name}"):
            generator = ctranslate2.Generator(
                str(folder), compute_type=self.compute_type, intra_threads=self.threads
            )
        return CTranslate2Session(
            generator,
            vocabulary,
            tokenizer=load_tokenizer(model, folder),
            capabilities=CAPABILITIES,
            identity=model_identity(model, folder, WEIGHTS),
            max_model_len=self.max_model_len,
            batch_size=self.batch_size,
        )


def _import_ctranslate2() -> Any:
    # One minor version: the order of what it reports to a callback is documented nowhere.
    return import_runtime("ctranslate2", ">=4.8,<4.9", install='pip install "ctranslate2>=4.8,<4.9"')
