"""The subject of a benchmark: an engine with a model in a worker process, or a served one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import httpx

from evalution_core import ConfigurationError, EngineUnavailableError, Model, load_engine
from evalution_core.builtins import builtin_path
from evalution_core.options import read_key
from evalution_core.plugins import did_you_mean
from evalution_core.redaction import redact_text

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_CONNECT_S, _ANSWER_S = 5.0, 30.0
_REFUSED = (401, 403)


def locate_tokenizer(model: Model) -> str | None:
    """Return the folder or Hub name by which Transformers loads a model's tokenizer."""
    name = model.tokenizer_path or model.path
    if name is not None and name.startswith("builtin:"):
        return str(builtin_path(name, "safetensors"))
    return name


@dataclass(frozen=True, slots=True)
class EngineSubject:
    """An engine, by name and options, and a model's fields.

    Args:
        engine: the engine's name.
        options: its options.
        model: the fields of `Model`; without `path`, what the engine serves.
        check_first: load the model in this process too, so that its errors appear at once.
    """

    engine: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    model: Mapping[str, Any] = field(default_factory=dict[str, Any])
    check_first: bool = True

    @property
    def title(self) -> str:
        return f"{Model(**self.model).name} on {self.engine}"

    def resolve(self) -> EngineSubject:
        """Return the same with the model's name, which an engine may have a default for.

        Raises:
            ConfigurationError: an option is wrong, or no model is named and the engine needs one.
        """
        engine = load_engine(self.engine).from_options(self.options)
        if Model(**self.model).path is not None:
            return self
        path = engine.default_model()
        if path is None:
            raise ConfigurationError(f"engine {self.engine} needs a MODEL; builtin:tiny, say")
        return replace(self, model={**self.model, "path": path})

    def make_backend(self, *, chat: bool, max_tokens: int) -> dict[str, Any]:
        """Return GuideLLM's `backend`."""
        others = {name: value for name, value in self.model.items() if name != "path"}
        return {
            "kind": "evalution",
            "engine": self.engine,
            "options": dict(self.options),
            "model": self.model.get("path"),
            "model_options": others,
            "request_format": CHAT if chat else COMPLETIONS,
            "max_tokens": max_tokens,
            "check_first": self.check_first,
        }

    def find_tokenizer(self) -> str | None:
        """Return the name of the model's tokenizer; None if there is none."""
        return locate_tokenizer(Model(**self.model))

    def to_dict(self) -> dict[str, Any]:
        """Return engine and model for results, without credentials."""
        options = load_engine(self.engine).from_options(self.options).to_dict()
        engine = {"name": self.engine, "options": options}
        return {"engine": engine, "model": Model(**self.model).to_dict()}


@dataclass(frozen=True, slots=True)
class ServedSubject:
    """A model behind an OpenAI-style endpoint.

    Args:
        target: the server's URL, with or without `/v1`.
        model: its name there; None: the first that the server lists.
        api_key_env: the environment variable that holds the API key.

    Raises:
        ConfigurationError: the variable of the key isn't set, or the URL has credentials too.
    """

    target: str
    model: str | None = None
    api_key_env: str | None = None

    def __post_init__(self) -> None:
        if self.api_key_env is None:
            return
        if _has_credentials(self.target):
            raise ConfigurationError(
                f"--target {self._shown} holds a name and password, which would be sent in "
                f"place of the key in {self.api_key_env}: leave them out of the URL, or leave out "
                "--api-key-env"
            )
        if not self._key:
            raise ConfigurationError(
                f"--api-key-env {self.api_key_env}: that environment variable is not set"
            )

    @property
    def title(self) -> str:
        return f"{self.model or 'the model'} at {self._shown}"

    def resolve(self) -> ServedSubject:
        """Return the same with the model's name.

        It asks for the list of models, which needs the server, the key and the name to be right.

        Raises:
            ConfigurationError: the URL, the key or the name is wrong.
            EngineUnavailableError: no server answers.
        """
        names = self._list_models()
        if self.model is None:
            return replace(self, model=names[0] if names else None)
        if names and self.model not in names:
            raise ConfigurationError(
                f"{self._shown} has no model {self.model!r}{did_you_mean(self.model, names)} "
                f"(it has: {', '.join(names)})"
            )
        return self

    def make_backend(self, *, chat: bool, max_tokens: int) -> dict[str, Any]:
        """Return GuideLLM's `backend`."""
        return {
            "kind": "openai_http",
            "target": self.target,
            **({"model": self.model} if self.model else {}),
            **({"api_key": self._key} if self._key else {}),
            "request_format": CHAT if chat else COMPLETIONS,
            "max_tokens": max_tokens,
            # `resolve` has asked; GuideLLM would ask for /health, which not every server has.
            "validate_backend": False,
            "verify": True,
            "follow_redirects": False,
        }

    def find_tokenizer(self) -> str | None:
        """Return the model's name, by which the Hub may have its tokenizer."""
        return self.model

    def to_dict(self) -> dict[str, Any]:
        """Return server and model for results, without credentials."""
        return {"target": self._shown, "model": {"path": self.model}}

    @property
    def _key(self) -> str:
        return read_key(self.api_key_env or "")

    @property
    def _shown(self) -> str:
        return redact_text(self.target)

    def _list_models(self) -> list[str]:
        url = f"{self.target.rstrip('/').removesuffix('/v1')}/v1/models"
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            timeout = httpx.Timeout(_ANSWER_S, connect=_CONNECT_S)
            response = httpx.get(url, headers=headers, timeout=timeout)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ConfigurationError(
                f"--target {self._shown} is no URL of a server ({error}); as http://127.0.0.1:8000"
            ) from None
        except httpx.HTTPError as error:
            reason = redact_text(str(error), [self._key] if self._key else [])
            raise EngineUnavailableError(
                f"no server answers at {self._shown} ({type(error).__name__}: {reason}); "
                "start it, or name another --target"
            ) from error
        if response.status_code in _REFUSED:
            raise ConfigurationError(
                f"{self._shown} refuses the key ({response.status_code}); "
                "--api-key-env names the variable that holds the right one"
            )
        try:
            response.raise_for_status()
            return [str(entry["id"]) for entry in response.json()["data"]]
        except (httpx.HTTPStatusError, ValueError, KeyError, TypeError):
            raise ConfigurationError(
                f"{self._shown} is no OpenAI-style server: /v1/models gave {response.status_code} "
                f"and {redact_text(response.text[:80])!r}; name another --target"
            ) from None


Subject = EngineSubject | ServedSubject
"""Something that GuideLLM can put under load."""


def _has_credentials(url: str) -> bool:
    try:
        return "@" in urlsplit(url).netloc
    except ValueError:  # not a URL, which is an error once the server is asked
        return False
