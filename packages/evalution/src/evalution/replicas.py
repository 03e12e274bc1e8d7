"""Several sessions of one engine on this machine, as an engine like any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

from pydantic.json_schema import SkipJsonSchema

from evalution.hints import INSTALL_HINTS
from evalution.workers import SupervisedSession, WorkerOptions, build_supervised
from evalution.workers.building import check_workers
from evalution_core import (
    BaseEngine,
    Capability,
    ConfigurationError,
    EngineSpec,
    Model,
    load_engine,
    neutral,
    redact,
    validate_options,
)
from evalution_core.options import parse_options
from evalution_core.redaction import redact_fields

_AT_BEST = frozenset(Capability) - {Capability.ATTACH}


class _InnerCapabilities:
    """What the engine within can do but attach: live objects stay in their process."""

    def __get__(self, replicas: Replicas | None, _: type[Replicas]) -> frozenset[Capability]:
        if replicas is None:
            return _AT_BEST
        return replicas.inner.capabilities - {Capability.ATTACH}


def _engine_form(written: Any) -> Mapping[str, Any] | None:
    match written:
        case None:
            return None
        case str():
            return {"kind": written}
        case {"type": kind, **options}:
            return {"kind": kind, "params": options}
        case {"kind": _}:
            return written
        case _:
            raise ConfigurationError(
                "option 'engine' of engine Replicas must be an engine's name, a mapping with "
                f"'type' and its options, or one with 'kind' and 'params', got {redact(written)!r}"
            )


@dataclass(slots=True)
class Replicas(BaseEngine):
    """Runs an engine in several processes, which answer together.

    A process that ends or hangs is started again, and a request that ends its process becomes a
    failure of its own. `batch_size` of a call caps what runs in all of them. The processes inherit
    the environment, with the credentials in it.

    Options:
        engine: the engine to run; in a spec its name, or `type` with the options beside it.
        replicas: how many processes; None: one for each of `devices`.
        devices: what each of them sees as `CUDA_VISIBLE_DEVICES`; an entry may name several
            devices (`"0,1"`). Without devices, each has an equal share of the cores.
        request_timeout, build_timeout: seconds until a process counts as hung, see
            `evalution.workers.WorkerOptions`; without one, never.
        restarts: how often in a row a process may end without having answered anything.
    """

    engine: EngineSpec | SkipJsonSchema[BaseEngine | None] = None
    replicas: int | None = neutral(default=None)
    devices: list[str] | None = neutral(default=None)  # noqa: RUF009 - it holds None
    request_timeout: float | None = neutral(default=None)
    build_timeout: float | None = neutral(default=None)
    restarts: int = neutral(default=8)

    capabilities: ClassVar[frozenset[Capability]] = cast(
        "frozenset[Capability]", _InnerCapabilities()
    )

    def __post_init__(self) -> None:
        validate_options(self)
        if isinstance(self.engine, EngineSpec):
            # Kept as an engine, which hides what is secret of its options.
            kind = load_engine(self.engine.kind, hints=INSTALL_HINTS)
            self.engine = kind.from_options(self.engine.params)
        if self.engine is None:
            raise ConfigurationError(
                "engine Replicas needs the option 'engine': the engine to run in each process"
            )
        if isinstance(self.engine, Replicas):
            raise ConfigurationError(
                "option 'engine' of engine Replicas is another Replicas; multiply their numbers"
            )
        if self.replicas is None:
            if not self.devices:
                raise ConfigurationError(
                    "engine Replicas needs the option 'replicas', or 'devices' with one entry for "
                    "each process"
                )
            self.replicas = len(self.devices)
        check_workers(self.engine, self.replicas, self.devices)
        self._options()

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """As any engine's; the engine within is written as a spec writes one, in any of its forms.

        Raises:
            ConfigurationError: an option of `Replicas` or of the engine within.
        """
        given = dict(options)
        if "engine" in given:
            given["engine"] = _engine_form(given["engine"])
        return cls(**parse_options(cls, given))

    @property
    def inner(self) -> BaseEngine:
        """The engine that runs in each process."""
        assert isinstance(self.engine, BaseEngine)
        return self.engine

    @property
    def processes_limit(self) -> int | None:
        limit = self.inner.processes_limit
        return None if limit is None else max(1, limit // self._count)

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

    def build(self, model: Model) -> SupervisedSession:
        """Load `model` in all processes at the same time; errors as `build_supervised`."""
        validate_options(self)
        return build_supervised(
            self.inner,
            model,
            workers=self._count,
            options=self._options(),
            devices=self.devices,
        )

    @property
    def _count(self) -> int:
        assert self.replicas is not None
        return self.replicas

    def _options(self) -> WorkerOptions:
        return WorkerOptions(
            request_timeout=self.request_timeout,
            build_timeout=self.build_timeout,
            restarts=self.restarts,
        )
