"""The parts of Ray that are used, compared with its source by `tools/check_upstream_api.py`."""

from __future__ import annotations

from concurrent.futures import Future
from types import ModuleType
from typing import Any, Protocol


class Reference(Protocol):
    """Of a value that a call will give."""

    def future(self) -> Future[Any]: ...


class Method(Protocol):
    def remote(self, *arguments: Any) -> Reference: ...


class Actor(Protocol):
    """The methods of `SessionActor`, as its handle has them."""

    exchange: Method
    stacks: Method


class ActorKind(Protocol):
    """A class made remote, with or without options."""

    def options(self, **options: Any) -> ActorKind: ...
    def remote(self, *arguments: Any) -> Actor: ...


class Exceptions(Protocol):
    ActorDiedError: type[Exception]
    ActorUnavailableError: type[Exception]
    RuntimeEnvSetupError: type[Exception]
    AuthenticationError: type[Exception]
    OutOfMemoryError: type[Exception]


class Context(Protocol):
    """Of this process, in its cluster."""

    def get_node_id(self) -> str: ...

    @property
    def gcs_address(self) -> str: ...


class RuntimeEnv(Protocol):
    """The class of runtime environments."""

    known_fields: set[str]


class Ray(Protocol):
    """The module `ray`."""

    __version__: str
    exceptions: Exceptions
    cloudpickle: ModuleType

    def init(self, address: str | None = None, **options: Any) -> Any: ...
    def is_initialized(self) -> bool: ...
    def shutdown(self) -> None: ...
    def nodes(self) -> list[dict[str, Any]]: ...
    def available_resources(self) -> dict[str, float]: ...
    def put(self, value: Any) -> Any: ...
    def get(self, object_refs: Any) -> Any: ...
    def kill(self, actor: Any) -> None: ...
    def get_runtime_context(self) -> Context: ...


class MakesRemote(Protocol):
    """`ray.remote`, on a class."""

    def __call__(self, kind: type[Any]) -> ActorKind: ...


class Notes(Protocol):
    """The module `ray.experimental.internal_kv`: what every process of a cluster can read."""

    def _internal_kv_put(self, key: bytes, value: bytes) -> Any: ...
    def _internal_kv_exists(self, key: bytes) -> bool: ...
    def _internal_kv_del(self, key: bytes) -> Any: ...


UPSTREAM = {
    "Ray": "ray",
    "Exceptions": "ray.exceptions",
    "RuntimeEnv": "ray.runtime_env.RuntimeEnv",
    "Context": "ray.runtime_context.RuntimeContext",
}
