"""Several sessions of one engine on this machine, as an engine like any other."""

from __future__ import annotations

from dataclasses import dataclass

from evalution.replication import ReplicatedEngine
from evalution.workers import SupervisedSession, build_supervised
from evalution.workers.building import check_workers
from evalution_core import ConfigurationError, Model, speed_only, validate_options


@dataclass(slots=True)
class Replicas(ReplicatedEngine):
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

    devices: list[str] | None = speed_only(default=None)

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
