"""A session's request from the body that GuideLLM would send to a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from guidellm.schemas import GenerationRequestArguments  # noqa: TC002 - pydantic reads it
from guidellm.schemas.backends import BackendArgs
from pydantic import Field, PositiveInt, field_serializer, model_validator

from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    GenerationRequest,
    Model,
    UnsupportedRequestError,
    load_engine,
)
from evalution_core.plugins import did_you_mean
from evalution_core.redaction import REDACTED, find_secrets, redact

BODY_FIELDS = ("temperature", "top_p", "top_k", "seed", "stop", "ignore_eos", "max_tokens")
"""Fields that `extras.body` may add to every request."""
_DEFAULT_TOKENS = 256


def make_request(body: Mapping[str, Any], capabilities: frozenset[Capability]) -> GenerationRequest:
    """Make the request of a body for completions (`prompt`) or chat (`messages`).

    It is what Evalution's server makes of the same body, so that a run in process and one through
    the server do the same work: greedy unless `temperature` is above 0, and a prompt that is too
    long is refused rather than cut, if the engine declares truncation.

    Raises:
        UnsupportedRequestError: the body has tools.
    """
    if body.get("tools"):
        raise UnsupportedRequestError("the data has tools, which kind=evalution doesn't pass on")
    stop: Any = body.get("stop") or ()
    sampled = bool(body.get("temperature"))
    return GenerationRequest(
        prompt=body.get("prompt"),
        messages=body.get("messages"),
        stop=[stop] if isinstance(stop, str) else stop,
        max_new_tokens=body.get("max_completion_tokens")
        or body.get("max_tokens")
        or _DEFAULT_TOKENS,
        do_sample=sampled,
        temperature=float(body.get("temperature") or 0),
        top_p=float(body.get("top_p") or 1),
        top_k=max(0, body.get("top_k") or 0),
        seed=body.get("seed") if sampled else None,
        ignore_eos=bool(body.get("ignore_eos")),
        truncation="error" if Capability.TRUNCATION in capabilities else "left",
    )


RequestFormat = Literal["/v1/chat/completions", "/v1/completions"]


@BackendArgs.register("evalution")
class EvalutionBackendArgs(BackendArgs):
    """An engine and a model, by name. Both are checked here, before anything is loaded."""

    kind: Literal["evalution"] = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default="evalution", description="Any Evalution engine."
    )
    engine: str = Field(
        description="The engine's name, as `evalution engines` lists it, or module:Class.",
        examples=["Transformers"],
    )
    model: str | None = Field(
        default=None,
        description="builtin:tiny, a path, or a name; left out: what the engine serves.",
        examples=["Qwen/Qwen3-0.6B"],
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of the engine, as options.dtype=bfloat16.",
        examples=[{"dtype": "bfloat16"}],
        repr=False,
    )
    model_options: dict[str, Any] = Field(
        default_factory=dict,
        description="Further fields of the model, as model_options.revision=main.",
        examples=[{"tokenizer_path": "./tokenizer"}],
        repr=False,
    )
    request_format: RequestFormat = Field(
        default="/v1/chat/completions",
        description="Chat through the model's template, or plain text.",
    )
    stream: bool = Field(default=True, description="Time every token, if the engine streams text.")
    max_tokens: PositiveInt | None = Field(
        default=None, description="The limit where the data sets none; left out: 256."
    )
    batch_size: PositiveInt | None = Field(
        default=None, description="Requests that run at once; left out: the session decides."
    )
    extras: GenerationRequestArguments | None = Field(
        default=None,
        description=f"Of every request, as extras.body.top_p=0.9: {', '.join(BODY_FIELDS)}.",
    )
    processes: PositiveInt = Field(
        default=1, description="Worker processes at most; each of them loads the model."
    )
    check_first: bool = Field(
        default=True,
        description=(
            "Load the model once before the workers do, so that errors appear at once; "
            "false where loading takes long."
        ),
    )

    @model_validator(mode="after")
    def _check(self) -> EvalutionBackendArgs:
        self.make_engine()
        fields = [name for name in Model.__dataclass_fields__ if name not in ("path", "tokenizer")]
        body = (self.extras and self.extras.body) or {}
        for option, given, known in (
            ("model_options", self.model_options, fields),
            ("extras.body", body, BODY_FIELDS),
        ):
            for name in given:
                if name not in known:
                    raise ConfigurationError(
                        f"{option}.{name} is unknown{did_you_mean(name, known)} "
                        f"(possible: {', '.join(known)})"
                    )
        return self

    @field_serializer("options", when_used="json")
    def _redact_options(self, values: dict[str, Any]) -> Any:
        """Reports and what is printed hold no credentials; the engine knows which options are."""
        engine = self.make_engine()
        hidden = {name for name, value in engine.to_dict().items() if value == REDACTED}
        return {
            name: REDACTED if name in hidden else value
            for name, value in redact(values, find_secrets(engine)).items()
        }

    @field_serializer("model_options", when_used="json")
    def _redact(self, values: dict[str, Any]) -> Any:
        return redact(values)

    def make_engine(self) -> BaseEngine:
        """Build the engine; raises `ConfigurationError` or `EngineUnavailableError`."""
        return load_engine(self.engine).from_options(self.options)

    def make_model(self, engine: BaseEngine) -> Model:
        """Return the model that is named, else the one that the engine serves.

        Raises:
            ConfigurationError: none is named, and the engine serves none.
        """
        path = self.model if self.model is not None else engine.default_model()
        if path is None:
            raise ConfigurationError(
                f"engine {self.engine} needs a model; add model=… to --backend"
            )
        return Model(path=path, **self.model_options)
