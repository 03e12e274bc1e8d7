"""What a server says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    EngineUnavailableError,
    EvalutionError,
    UnsupportedRequestError,
    scrub,
)
from evalution_enginekit import RequestLoop
from evalution_openai.answers import mapping
from evalution_openai.connection import open_endpoint
from evalution_openai.endpoint import Endpoint, is_unreachable

if TYPE_CHECKING:
    from evalution_openai.engine import OpenAICompatible


@dataclass(frozen=True, slots=True)
class Served:
    """What `/v1/models` told, of the model that is asked for where it lists that; all optional."""

    names: tuple[str, ...] = ()
    owner: str | None = None
    max_model_len: int | None = None
    dtype: str | None = None
    capabilities: frozenset[str] = field(default_factory=frozenset[str])


async def find_served(endpoint: Endpoint, name: str | None) -> Served:
    """What the server lists; nothing where it has no list.

    Raises:
        EngineUnavailableError: no server answers.
        ConfigurationError: it doesn't accept the credentials.
    """
    try:
        answer = await endpoint.get(f"{endpoint.address.api}/models")
    except ConfigurationError:
        raise
    except EvalutionError as error:
        if is_unreachable(error):
            raise EngineUnavailableError(
                f"no server answers at {scrub(endpoint.address.api)}: {error}; start it, or set "
                "base_url"
            ) from error
        return Served()
    listed: Any = answer.get("data")
    models = [mapping(entry) for entry in cast("list[Any]", listed or [])]
    names = tuple(str(model["id"]) for model in models if "id" in model)
    if not models:
        return Served()
    chosen = next((model for model in models if model.get("id") == name), None)
    if chosen is None and name is not None and len(models) > 1:
        return Served(names, _text(models[0].get("owned_by")))  # nothing is known of that model
    chosen = chosen or models[0]
    can: Any = chosen.get("capabilities")
    return Served(
        names,
        _text(chosen.get("owned_by")),
        _count(chosen.get("max_model_len")),
        _text(chosen.get("dtype")),
        frozenset(str(c) for c in cast("list[Any]", can)) if isinstance(can, list) else frozenset(),
    )


async def tokenizer_facts(endpoint: Endpoint) -> Mapping[str, Any]:
    """What `/tokenizer_info` tells; nothing where there is no such route."""
    try:
        return await endpoint.get(f"{endpoint.address.root}/tokenizer_info", max_retries=1)
    except EngineRuntimeError:
        return {}


async def keeps_template(endpoint: Endpoint) -> bool:
    """Whether Evalution's server has said that its engine gives no chat template."""
    try:
        facts = await tokenizer_facts(endpoint)
    except UnsupportedRequestError:  # it gives no tokenizer at all
        return True
    return "chat_template" in facts and facts["chat_template"] is None


def served_model(options: OpenAICompatible) -> str | None:
    """The first model that the server lists; None where it lists none.

    Raises:
        EngineUnavailableError: no server answers.
    """
    loop = RequestLoop("the OpenAICompatible engine")
    endpoint = open_endpoint(options)
    try:
        names = loop.call(lambda: find_served(endpoint, options.model_name)).names
    finally:
        loop.close(endpoint.close)
    return names[0] if names else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
