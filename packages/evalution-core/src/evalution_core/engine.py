"""An engine: the configuration of a runtime, picklable, without weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, ClassVar, Protocol, Self

from evalution_core.capabilities import GUIDE_CAPABILITIES, Capability
from evalution_core.errors import (
    ConfigurationError,
    EngineUnavailableError,
    UnsupportedRequestError,
)
from evalution_core.model import Model
from evalution_core.options import (
    check_option_names,
    options_schema,
    parse_options,
    validate_options,
)
from evalution_core.plugins import list_entry_points
from evalution_core.redaction import redact_fields, redact_repr
from evalution_core.session import BaseInferenceSession

CONTRACT_VERSION = 1
"""The contract this core implements; an engine written for another one is refused when loaded."""


class RunHandle(Protocol):
    """An engine and a model, ready to run suites: `engine.model(…).run(suite).run(suite)`."""

    @property
    def engine(self) -> dict[str, Any]: ...
    @property
    def model(self) -> dict[str, Any]: ...
    @property
    def result(self) -> Any:
        """The results so far, of the runner's own type."""
        ...

    def to_dict(self) -> dict[str, Any]: ...
    def run(self, suite: Any) -> Self: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None: ...


class BaseEngine(ABC):
    """Base of every engine. A subclass is a dataclass whose fields are its options.

    Options are checked by name and type when the engine is constructed. A subclass with its own
    `__post_init__` calls `validate_options(self)` there; it never needs `super()`.
    """

    __slots__ = ()

    declared_as: ClassVar[str] = "engine"
    contract: ClassVar[int] = 1
    """The contract version the engine was written for."""
    capabilities: ClassVar[frozenset[Capability]] = GUIDE_CAPABILITIES
    """All that its sessions can do at best; a session may narrow it once it is built."""
    is_out_of_process: ClassVar[bool] = False
    """The runtime is a server or a process of its own, whose end this process survives."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        check_option_names(cls, options)
        return super().__new__(cls)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):  # or `@dataclass` would write one that shows credentials
            cls.__repr__ = BaseEngine.__repr__

    def __repr__(self) -> str:
        return redact_repr(self) if is_dataclass(self) else object.__repr__(self)

    def __post_init__(self) -> None:
        validate_options(self)

    @abstractmethod
    def build(self, model: Model) -> BaseInferenceSession:
        """Load `model` in this process. A build that fails half-way frees what it took.

        Raises:
            ConfigurationError: the model's files are missing or not of a kind the engine loads.
            EngineUnavailableError: the runtime is missing or too old, or the device impossible.
        """
        ...

    def attach(
        self, handles: Mapping[str, Any], model: Model | None = None
    ) -> BaseInferenceSession:
        """Return a session on a model in memory, which stays the caller's: nothing of it is freed.

        Raises:
            UnsupportedRequestError: the engine doesn't declare `attach`.
        """
        raise UnsupportedRequestError(f"engine {type(self).__name__} can't attach to a live model")

    def default_model(self) -> str | None:
        """The model that the runtime serves, where it knows one."""
        return None

    def describe_runtime(self) -> dict[str, Any] | None:
        """Describe the runtime, found without a model by importing it; JSON-safe.

        Common keys: version (of the runtime), device. None where nothing is known.

        Raises:
            EngineUnavailableError: the runtime is missing, too old, or lacks the device that was
                asked for; the message says what to install or to change.
        """
        return None

    @property
    def processes_limit(self) -> int | None:
        """Number of processes that may build this engine at once; None: any number."""
        return None

    @property
    def requests_limit(self) -> int | None:
        """Number of requests that may be in flight over all processes; None: any number."""
        return None

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """An engine from a spec's mapping of plain values.

        Raises:
            ConfigurationError: an unknown option, with the nearest name, or an ill-typed value.
        """
        return cls(**parse_options(cls, options))

    @classmethod
    def options_schema(cls) -> dict[str, Any]:
        """JSON schema of the options."""
        return options_schema(cls)

    def to_dict(self) -> dict[str, Any]:
        """All options as JSON-safe values, secrets and credentials in URLs redacted."""
        return redact_fields(self)

    def model(
        self,
        path: str | None = None,
        *,
        tokenizer: Any = None,
        tokenizer_path: str | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        model_kwargs: Mapping[str, Any] | None = None,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        label: str | None = None,
    ) -> RunHandle:
        """A handle that runs suites on this engine; nothing is loaded before the first `run`.

        Raises:
            ConfigurationError: no runner is installed (`pip install evalution-runner` brings one).
        """
        runners = sorted(list_entry_points("evalution.runner"), key=lambda found: found.name)
        if not runners:
            raise ConfigurationError(
                "engine.model() needs a runner and none is installed; pip install evalution-runner"
            )
        return runners[0].load()(
            self,
            Model(
                path=path,
                label=label,
                tokenizer=tokenizer,
                tokenizer_path=tokenizer_path,
                revision=revision,
                trust_remote_code=trust_remote_code,
                model_kwargs=dict(model_kwargs or {}),
                tokenizer_kwargs=dict(tokenizer_kwargs or {}),
                chat_template_kwargs=dict(chat_template_kwargs or {}),
            ),
        )


def check_contract(engine: type[BaseEngine], what: str | None = None) -> None:
    """Raise `EngineUnavailableError` over an engine that was written for another contract.

    Whoever takes an engine that was not loaded by name calls this before `build`.

    Args:
        engine: its class.
        what: words for it; `engine 'Name'` if None.
    """
    if engine.contract != CONTRACT_VERSION:
        older = "engine" if engine.contract < CONTRACT_VERSION else "evalution-core"
        raise EngineUnavailableError(
            f"{what or f'engine {engine.__name__!r}'} was written for contract {engine.contract}, "
            f"this evalution-core implements {CONTRACT_VERSION}; upgrade the {older}"
        )
