"""The engine `OpenAICompatible`: any server with OpenAI's HTTP interface."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    Model,
    secret,
    speed_only,
    validate_options,
)
from evalution_core.redaction import SECRET_FIELD
from evalution_openai.client.dialects import DialectName

if TYPE_CHECKING:
    from evalution_openai.client.session import OpenAISession

OPENAI_CAPABILITIES = frozenset(Capability) - {
    Capability.BEAMS,
    Capability.TOOLS,
    Capability.MULTIMODAL,
    Capability.ATTACH,
}


@dataclass(slots=True)
class OpenAICompatible(BaseEngine):
    """A model behind an HTTP endpoint. What the server can do is found out when a session is built.

    Options:
        base_url: the server, with or without `/v1`.
        api_key: sent as `Authorization: Bearer`; never shown.
        model_name: the server's name of the model; None: `model.path`, else the first it lists.
        timeout_s: seconds for one try of a request.
        batch_size: requests in flight, each refilled at once when one is answered; 0: one at a
            time. With "auto" it begins at 8 and grows to 64 while the server keeps up. A 429
            halves it, answers let it recover.
        api_key_env: name of the environment variable that holds the key.
        extra_headers: sent with every request; all their values are kept secret as the key is.
        extra_body: fields for every completion and chat request; they win over Evalution's own,
            and null takes one out.
        max_retries: tries after the first, on connection errors, time-outs, 408, 409, 429 and 5xx.
        deadline_s: seconds for a request with all its tries and the waits between them.
        requests_per_minute, tokens_per_minute: what the server allows; None: as fast as it can.
        api: where prompts go. "auto": text and ids to completions, messages to chat, unless they
            are rendered here. "completions": messages are rendered here or refused. "chat":
            messages alone.
        dialect: what the server understands beyond OpenAI's fields; "auto": by what it says of
            itself.
        max_model_len: tokens the model is fed at most; None: what the server tells.
        scoring: the one way of scoring to use; "auto" takes the first that the probe finds right,
            "none" doesn't look for any.
        stepwise_top: allows scoring with one request a token, where nothing else works; the server
            has to list the wanted token among so many. 0: not allowed.
        timings: stream every completion, and note when its first text came.
    """

    base_url: str = "http://127.0.0.1:8000"
    api_key: str | None = secret()
    model_name: str | None = None
    timeout_s: float = speed_only(default=300.0)
    batch_size: int | Literal["auto"] = speed_only(default=4)
    api_key_env: str | None = speed_only(default=None)
    extra_headers: dict[str, str] = field(
        default_factory=dict[str, str], repr=False, metadata={SECRET_FIELD: True}
    )
    extra_body: dict[str, Any] = field(default_factory=dict[str, Any])
    max_retries: int = speed_only(default=5)
    deadline_s: float = speed_only(default=900.0)
    requests_per_minute: int | None = speed_only(default=None)
    tokens_per_minute: int | None = speed_only(default=None)
    api: Literal["auto", "completions", "chat"] = "auto"
    dialect: DialectName = "auto"
    max_model_len: int | None = None
    scoring: Literal[
        "auto", "none", "evalution", "echo", "prompt_logprobs", "sglang", "stepwise"
    ] = "auto"
    stepwise_top: int = 0
    timings: bool = speed_only(default=False)

    capabilities = OPENAI_CAPABILITIES

    def __post_init__(self) -> None:
        validate_options(self)
        for name, value, least in (
            ("timeout_s", self.timeout_s, None),
            ("deadline_s", self.deadline_s, None),
            ("batch_size", 0 if self.batch_size == "auto" else self.batch_size, 0),
            ("max_retries", self.max_retries, 0),
            ("stepwise_top", self.stepwise_top, 0),
            ("requests_per_minute", self.requests_per_minute, 1),
            ("tokens_per_minute", self.tokens_per_minute, 1),
            ("max_model_len", self.max_model_len, 2),
        ):
            self._check(name, value, least)
        if self.scoring == "stepwise" and not self.stepwise_top:
            raise ConfigurationError(
                "option 'scoring' of engine OpenAICompatible is 'stepwise', which costs a request "
                "for each token; allow it with stepwise_top, the number of tokens that the server "
                "lists at a step (5, say)"
            )

    def default_model(self) -> str | None:
        """The first model that the server lists.

        Raises:
            EngineUnavailableError: no server answers.
        """
        from evalution_openai.client.probe import served_model  # noqa: PLC0415 - httpx, for use alone

        return served_model(self)

    def describe_runtime(self) -> dict[str, Any]:
        import httpx  # noqa: PLC0415 - for use alone

        return {
            "version": httpx.__version__,
            "device": None,
            "base_url": self.to_dict()["base_url"],
        }

    def build(self, model: Model) -> OpenAISession:
        """Ask the server what it is and which way of scoring holds.

        Raises:
            EngineUnavailableError: no server answers at `base_url`.
            ConfigurationError: the key isn't accepted or its variable isn't set, no model is named
                and the server lists none, `max_model_len` is more than the server's, or `model` has
                a field that is the server's to decide (`revision`, `model_kwargs`) or that it
                isn't known to heed (`chat_template_kwargs`).
        """
        from evalution_openai.client.session import build_session  # noqa: PLC0415 - httpx, for use alone

        return build_session(self, model)

    def _check(self, name: str, value: float | None, least: int | None) -> None:
        too_small = value is not None and (value <= 0 if least is None else value < least)
        if too_small:
            wanted = "above 0" if least is None else f"at least {least}"
            raise ConfigurationError(
                f"option {name!r} of engine OpenAICompatible must be {wanted}, got {value!r}"
            )
