"""Engines that run another engine in several workers: what they share, and `Replicas`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, Self, cast

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from evalution.workers import (
    SupervisedSession,
    WorkerOptions,
    build_supervised,
    check_workers,
    find_lost_capabilities,
)
from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    EngineSpec,
    Model,
    load_engine,
    speed_only,
    validate_options,
)
from evalution_core.options import parse_options
from evalution_core.redaction import redact, redact_fields

_AT_BEST = frozenset(Capability) - {Capability.ATTACH}


class _InnerCapabilities:
    """The capabilities of the inner engine, without those that so many workers lose."""

    def __get__(
        self, replicated: ReplicatedEngine | None, _: type[ReplicatedEngine]
    ) -> frozenset[Capability]:
        if replicated is None:
            return _AT_BEST
        return replicated.inner.capabilities - find_lost_capabilities(replicated.count)


@dataclass(slots=True)
class ReplicatedEngine(BaseEngine):
    """Base of engines that run another engine in several workers, on this machine or elsewhere.

    A subclass starts the workers in `build`, adds options of its own, and calls `check` in its
    `__post_init__`. Its own options are positional behind the first two.
    """

    engine: Annotated[
        EngineSpec | SkipJsonSchema[BaseEngine | None],
        Field(description="The engine to run; in a spec its name, or `type` and its options."),
    ] = None
    replicas: Annotated[
        int | None, Field(description="Number of workers; None: one for each device.")
    ] = speed_only(default=None)
    _: KW_ONLY
    request_timeout: Annotated[
        float | None,
        Field(
            gt=0,
            description="Seconds without progress of a request until its worker counts as hung; "
            "None: no limit.",
        ),
    ] = speed_only(default=None)
    build_timeout: Annotated[
        float | None,
        Field(gt=0, description="Seconds for loading the model in a worker; None: no limit."),
    ] = speed_only(default=None)
    restarts: Annotated[
        int,
        Field(
            ge=0,
            description="Restarts of a worker in a row without an answer until it is given up.",
        ),
    ] = speed_only(default=8)

    capabilities: ClassVar[frozenset[Capability]] = cast(
        "frozenset[Capability]", _InnerCapabilities()
    )
    is_out_of_process = True

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Resolve the inner engine; raise `ConfigurationError` for options that don't fit."""
        name = type(self).__name__
        given: Any = self.engine
        if not isinstance(given, EngineSpec | BaseEngine | None):
            is_class = isinstance(given, type)
            what = f"the class {given.__name__}" if is_class else repr(redact(given))
            raise ConfigurationError(
                f"option 'engine' of engine {name} must be an engine, as in "
                f"{name}(engine=VLLM(), replicas=2), got {what}"
            )
        validate_options(self)
        if isinstance(self.engine, EngineSpec):
            # Kept as an engine, which hides what is secret of its options.
            kind = load_engine(self.engine.kind)
            self.engine = kind.from_options(self.engine.params)
        if self.engine is None:
            raise ConfigurationError(
                f"engine {name} needs the option 'engine': the engine to run in each worker"
            )
        if isinstance(self.engine, ReplicatedEngine):
            raise ConfigurationError(
                f"option 'engine' of engine {name} is another {type(self.engine).__name__}; "
                "replicas of replicas can't be watched: use one kind, and multiply their numbers"
            )
        if self.replicas is None:
            raise ConfigurationError(f"engine {name} needs the option 'replicas': how many workers")
        check_workers(self.engine, self.replicas)
        self.worker_options()

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Make it of a spec's options; the inner engine may have any form that a spec allows.

        Raises:
            ConfigurationError: an option of this engine or of the inner one.
        """
        given = dict(options)
        if "engine" in given:
            given["engine"] = _engine_form(given["engine"], cls.__name__)
        return cls(**parse_options(cls, given))

    @property
    def inner(self) -> BaseEngine:
        """The engine that runs in each worker."""
        assert isinstance(self.engine, BaseEngine)
        return self.engine

    @property
    def count(self) -> int:
        """The number of workers."""
        assert self.replicas is not None
        return self.replicas

    @property
    def processes_limit(self) -> int | None:
        limit = self.inner.processes_limit
        return None if limit is None else max(1, limit // self.count)

    @property
    def requests_limit(self) -> int | None:
        return self.inner.requests_limit

    def default_model(self) -> str | None:
        return self.inner.default_model()

    def to_dict(self) -> dict[str, Any]:
        kind = type(self.inner)
        spec = {
            "kind": f"{kind.__module__}:{kind.__qualname__}",
            "params": self.inner.to_dict(),
        }
        return {**redact_fields(self), "engine": spec}

    def worker_options(self) -> WorkerOptions:
        """Return the deadlines and restarts of the workers."""
        return WorkerOptions(
            request_timeout=self.request_timeout,
            build_timeout=self.build_timeout,
            restarts=self.restarts,
        )


def _engine_form(written: Any, name: str) -> Mapping[str, Any] | None:
    match written:
        case None:
            return None
        case str():
            return {"kind": written}
        case {"python": _}:
            raise ConfigurationError(
                f"option 'engine' of engine {name} has no environment of its own: python stands "
                f"beside the type {name}, which then runs there"
            )
        case {"type": kind, **options}:
            return {"kind": kind, "params": options}
        case {"kind": _}:
            return written
        case _:
            raise ConfigurationError(
                f"option 'engine' of engine {name} must be an engine's name, a mapping with "
                f"'type' and its options, or one with 'kind' and 'params', got {redact(written)!r}"
            )


@dataclass(slots=True)
class Replicas(ReplicatedEngine):
    """Runs an engine in several processes, which answer together.

    A process that ends or hangs is started again, and a request that ends its process becomes a
    failure of its own. `batch_size` of a call caps what runs in all of them. The processes inherit
    the environment, with the credentials in it.

    Tokenizer: as `engine`.
    Precision: as `engine`.
    Ends: as `engine`.
    Recorded: as `engine`.
    """

    devices: Annotated[
        list[str] | None,
        Field(
            description="`CUDA_VISIBLE_DEVICES` of each process; an entry may name several devices "
            '("0,1"). None: every process sees all devices and uses its share of the cores.'
        ),
    ] = speed_only(default=None)

    def __post_init__(self) -> None:
        validate_options(self)
        if self.replicas is None:
            if self.engine is not None and not self.devices:
                raise ConfigurationError(
                    "engine Replicas needs the option 'replicas', or 'devices' with one entry for "
                    "each process"
                )
            self.replicas = len(self.devices or ())
        self.check()
        check_workers(self.inner, self.count, self.devices)

    def build(self, model: Model) -> SupervisedSession:
        """Load `model` in all processes at the same time; errors as `build_supervised`."""
        self.check()
        return build_supervised(
            self.inner,
            model,
            workers=self.count,
            options=self.worker_options(),
            devices=self.devices,
        )
