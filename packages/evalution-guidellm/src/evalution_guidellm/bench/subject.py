"""The subject of a benchmark: an engine with a model in a worker process, or a served one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import httpx

from evalution_core import ConfigurationError, EngineUnavailableError, Model, load_engine
from evalution_core.builtins import builtin_path
from evalution_core.plugins import did_you_mean
from evalution_core.redaction import hide, scrub

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_CONNECT_S, _ANSWER_S = 5.0, 30.0
_REFUSED = (401, 403)


class Subject(Protocol):
    """Something that GuideLLM can put under load."""

    @property
    def title(self) -> str:
        """As `tiny on Reference`."""
        ...

    def checked(self) -> Subject:
        """The same, with the model's name found out.

        Raises:
            EvalutionError: something is wrong already; mostly a `ConfigurationError`.
        """
        ...

    def backend(self, *, chat: bool, max_tokens: int) -> dict[str, Any]:
        """GuideLLM's `backend`."""
        ...

    def tokenizer(self) -> str | None:
        """By what name the model's tokenizer may be had; None: nobody knows."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """For results, without credentials."""
        ...


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

    def checked(self) -> EngineSubject:
        engine = load_engine(self.engine).from_options(self.options)
        if Model(**self.model).path is not None:
            return self
        path = engine.default_model()
        if path is None:
            raise ConfigurationError(f"engine {self.engine} needs a MODEL; builtin:tiny, say")
        return replace(self, model={**self.model, "path": path})

    def backend(self, *, chat: bool, max_tokens: int) -> dict[str, Any]:
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

    def tokenizer(self) -> str | None:
        model = Model(**self.model)
        name = model.tokenizer_path or model.path
        if name is not None and name.startswith("builtin:"):
            return str(builtin_path(name, "safetensors"))
        return name

    def to_dict(self) -> dict[str, Any]:
        options = load_engine(self.engine).from_options(self.options).to_dict()
        engine = {"name": self.engine, "options": options}
        return {"engine": engine, "model": Model(**self.model).to_dict()}


@dataclass(frozen=True, slots=True)
class ServedSubject:
    """A model behind an OpenAI-style endpoint.

    Args:
        target: the server's URL, with or without `/v1`.
        model: its name there; None: the first that the server lists.
        key: the API key.
    """

    target: str
    model: str | None = None
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        hide(self.key, is_secret=True)
        hide(self.target)

    @property
    def title(self) -> str:
        return f"{self.model or 'the model'} at {scrub(self.target)}"

    def checked(self) -> ServedSubject:
        """Ask for the list of models, which needs the server, the key and the name to be right."""
        names = [str(entry.get("id")) for entry in self._listed()]
        if self.model is None:
            return replace(self, model=names[0] if names else None)
        if names and self.model not in names:
            raise ConfigurationError(
                f"{self._shown} has no model {self.model!r}{did_you_mean(self.model, names)} "
                f"(it has: {', '.join(names)})"
            )
        return self

    def backend(self, *, chat: bool, max_tokens: int) -> dict[str, Any]:
        return {
            "kind": "openai_http",
            "target": self.target,
            **({"model": self.model} if self.model else {}),
            **({"api_key": self.key} if self.key else {}),
            "request_format": CHAT if chat else COMPLETIONS,
            "max_tokens": max_tokens,
            # `checked` has asked; GuideLLM would ask for /health, which not every server has.
            "validate_backend": False,
            "verify": True,
            "follow_redirects": False,
        }

    def tokenizer(self) -> str | None:
        return self.model

    def to_dict(self) -> dict[str, Any]:
        return {"target": scrub(self.target), "model": {"path": self.model}}

    @property
    def _shown(self) -> str:
        return scrub(self.target)

    def _listed(self) -> list[Mapping[str, Any]]:
        url = f"{self.target.rstrip('/').removesuffix('/v1')}/v1/models"
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            timeout = httpx.Timeout(_ANSWER_S, connect=_CONNECT_S)
            response = httpx.get(url, headers=headers, timeout=timeout)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ConfigurationError(
                f"--target {self._shown} is no URL of a server ({error}); as http://127.0.0.1:8000"
            ) from None
        except httpx.HTTPError as error:
            raise EngineUnavailableError(
                f"no server answers at {self._shown} ({type(error).__name__}: "
                f"{scrub(str(error))}); start it, or name another --target"
            ) from error
        if response.status_code in _REFUSED:
            raise ConfigurationError(
                f"{self._shown} refuses the key ({response.status_code}); "
                "--api-key-env names the variable that holds the right one"
            )
        return _models(response, self._shown)


def _models(response: httpx.Response, shown: str) -> list[Mapping[str, Any]]:
    try:
        response.raise_for_status()
        return list(response.json()["data"])
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError):
        raise ConfigurationError(
            f"{shown} is no OpenAI-style server: /v1/models gave {response.status_code} and "
            f"{scrub(response.text[:80])!r}; name another --target"
        ) from None
