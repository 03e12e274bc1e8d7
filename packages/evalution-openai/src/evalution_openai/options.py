"""The options of the engine `OpenAICompatible`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from evalution_core import Capability, secret, speed_only
from evalution_core.redaction import SECRET_FIELD

CAPABILITIES = frozenset(Capability) - {
    Capability.BEAMS,
    Capability.MULTIMODAL,
    Capability.ATTACH,
    Capability.DISTRIBUTIONS,
}
"""Everything that some server of some dialect can do; a session declares what its own can."""

DialectName = Literal[
    "auto", "evalution", "vllm", "sglang", "llamacpp", "llama-cpp-python", "openai", "plain"
]
ApiName = Literal["auto", "completions", "chat"]
ScoringOption = Literal[
    "auto", "none", "evalution", "echo", "prompt_logprobs", "sglang", "stepwise"
]


@dataclass(slots=True)
class OpenAIOptions:
    """Options of the engine for OpenAI-style servers."""

    base_url: Annotated[
        str, Field(description="URL of the server, with or without `/v1`; http or https.")
    ] = "http://127.0.0.1:8000"
    api_key: Annotated[
        str | None,
        Field(
            description="Key sent as `Authorization: Bearer`; never shown. None: "
            "`api_key_env`, or no key."
        ),
    ] = secret()
    model_name: Annotated[
        str | None,
        Field(
            description="The model's name on the server. None: `model.path`, or the first model "
            "that the server lists."
        ),
    ] = None
    allow_unlisted: Annotated[
        bool,
        Field(
            description="Accept a model's name that the server doesn't list, such as an Azure "
            "deployment."
        ),
    ] = speed_only(default=False)
    timeout_s: Annotated[float, Field(gt=0, description="Seconds for one try of a request.")] = (
        speed_only(default=300.0)
    )
    batch_size: Annotated[
        NonNegativeInt | Literal["auto"] | None,
        Field(
            description="Requests in flight; each answered one is replaced at once. 0: one at a "
            "time. 'auto' or None: 8 at the beginning, up to 64 while the server keeps up. A 429 "
            "halves the number, answers raise it again."
        ),
    ] = speed_only(default=4)
    api_key_env: Annotated[
        str | None, Field(description="Name of the environment variable that holds the key.")
    ] = speed_only(default=None)
    extra_headers: Annotated[
        dict[str, str],
        Field(
            description="Headers sent with every request; their values are as secret as the key."
        ),
    ] = field(default_factory=dict[str, str], repr=False, metadata={SECRET_FIELD: True})
    extra_body: Annotated[
        dict[str, Any],
        Field(
            description="Fields added to every completion and chat request; they take precedence "
            "over Evalution's own, and null removes one."
        ),
    ] = field(default_factory=dict[str, Any])
    max_retries: Annotated[
        int,
        Field(
            ge=0,
            description="Tries after the first, on connection errors, time-outs, 408, 409, 429 "
            "and 5xx.",
        ),
    ] = speed_only(default=5)
    deadline_s: Annotated[
        float,
        Field(
            gt=0, description="Seconds for a request with all its tries and the waits between them."
        ),
    ] = speed_only(default=900.0)
    requests_per_minute: Annotated[
        PositiveInt | None,
        Field(description="Requests a minute that the server allows. None: no limit."),
    ] = speed_only(default=None)
    tokens_per_minute: Annotated[
        PositiveInt | None,
        Field(description="Tokens a minute that the server allows. None: no limit."),
    ] = speed_only(default=None)
    api: Annotated[
        ApiName,
        Field(
            description="Routes that prompts are sent to. 'auto': text and ids to completions, "
            "messages to chat unless they are rendered here. 'completions': messages are rendered "
            "here or refused. 'chat': only messages are accepted."
        ),
    ] = "auto"
    dialect: Annotated[
        DialectName,
        Field(
            description="Kind of server, for the fields beyond OpenAI's. 'auto': as the server "
            "identifies itself."
        ),
    ] = "auto"
    max_model_len: Annotated[
        Annotated[int, Field(ge=2)] | None,
        Field(
            description="Tokens that the model is fed at most. None: the limit that the server "
            "reports."
        ),
    ] = None
    scoring: Annotated[
        ScoringOption,
        Field(
            description="Method of scoring. 'auto': the first that the probe finds right. 'none': "
            "no scoring, and no probe."
        ),
    ] = "auto"
    stepwise_top: Annotated[
        int,
        Field(
            ge=0,
            description="Tokens that the server lists at a step. Above 0 allows scoring with one "
            "request a token, where no other method works. 0: not allowed.",
        ),
    ] = 0
    timings: Annotated[
        bool,
        Field(description="Stream every completion, and record when its first text arrived."),
    ] = speed_only(default=False)
