"""RayReplicas: several sessions of one engine on a Ray cluster, as an engine like any other."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from evalution.replicas import ReplicatedEngine
from evalution.workers import SupervisedSession, Supervision, WorkerOptions, pack_configuration
from evalution_core import ConfigurationError, EngineUnavailableError, Model, secret, speed_only
from evalution_core.plugins import did_you_mean
from evalution_ray.actor import Plan, SessionActor
from evalution_ray.connection import connect, load_ray
from evalution_ray.upstream import Actor, MakesRemote, Notes, Ray, RuntimeEnv
from evalution_ray.worker import ActorWorker, Cluster, Dispatcher

_CALLS = 4
"""Threads of an actor for calls: two on their way, one that asks for stacks, one to spare."""
_LONGEST_BEAT_S = 15.0
_PLUGINS = "RAY_RUNTIME_ENV_PLUGINS"
_BEATS = 8
"""Signs of life within the shortest deadline."""
_OBJECTS = ("object_store_memory", "node:")
_LITTLE = 1e-9


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RaySession(SupervisedSession):
    """A session over actors; it ends with them, and with a cluster that was started for it."""

    def __init__(
        self,
        supervision: Supervision,
        resources: ExitStack,
        *,
        requests_limit: int | None,
        description: dict[str, Any],
    ):
        super().__init__(supervision, requests_limit=requests_limit, description=description)
        self._resources = resources

    def close(self) -> None:
        with self._resources:
            super().close()


@dataclass(slots=True)
class RayReplicas(ReplicatedEngine):
    """Runs an engine in actors of a Ray cluster, which answer together.

    Each actor builds the session once. One that ends, with its node or alone, is started again
    where there is room; what it had in flight is run again, and a request that ends its actor
    becomes a failure of its own. `batch_size` of a call caps what runs in all of them.

    Tokenizer: as `engine`.
    Precision: as `engine`.
    Ends: as `engine`.
    Recorded: as `engine`.
    """

    address: Annotated[
        str | None,
        Field(
            description="`auto`, `host:port` or `ray://host:port` of a running cluster. None: the "
            "one that this process is connected to or that RAY_ADDRESS names, else one of this "
            "machine alone, which is started and ended with the session."
        ),
    ] = speed_only(default=None)
    num_cpus: Annotated[
        Amount, Field(description="Processors that an actor takes of its node.")
    ] = speed_only(default=1.0)
    num_gpus: Annotated[
        Amount,
        Field(description="Accelerators of an actor: a share of one, or a whole number of them."),
    ] = speed_only(default=0.0)
    memory: Annotated[
        int | None, Field(ge=0, description="Bytes of memory that an actor takes of its node.")
    ] = speed_only(default=None)
    resources: Annotated[
        dict[str, float] | None,
        Field(description="Amounts of the cluster's own resources that an actor takes, by name."),
    ] = speed_only(default=None)
    placement: Annotated[
        Literal["SPREAD", "DEFAULT"],
        Field(description="Spread actors over the nodes, or fill one node after the other."),
    ] = speed_only(default="SPREAD")
    runtime_env: Annotated[
        dict[str, Any] | None,
        Field(
            description="Ray's runtime environment of the actors: variables, packages, a working "
            "directory. It is kept secret."
        ),
    ] = secret()
    autoscales: Annotated[
        bool,
        Field(description="The cluster adds nodes when actors wait, so none is refused for room."),
    ] = speed_only(default=False)
    start_timeout: Annotated[
        float,
        Field(gt=0, description="Seconds an actor may wait for room and for its process."),
    ] = speed_only(default=120.0)
    log_to_driver: Annotated[
        bool,
        Field(description="Print what actors print, where the engine connects this process."),
    ] = speed_only(default=False)

    def check(self) -> None:
        ReplicatedEngine.check(self)
        self._check_accelerators()
        for name, amount in (self.resources or {}).items():
            if name in ("CPU", "GPU", "memory") or not 0 < amount < math.inf:
                raise ConfigurationError(
                    f"option 'resources' of engine RayReplicas holds a cluster's own resources and "
                    f"amounts above 0, got {name!r}: {amount!r}; processors, accelerators and "
                    "memory have the options num_cpus, num_gpus and memory"
                )
        if not self.need:
            raise ConfigurationError(
                "engine RayReplicas needs one of num_cpus, num_gpus, memory or resources above 0: "
                "of actors that take nothing, Ray puts any number on a node"
            )

    def _check_accelerators(self) -> None:
        if self.num_gpus > 1 and self.num_gpus % 1:
            raise ConfigurationError(
                f"option 'num_gpus' of engine RayReplicas must be a share of one or a whole number "
                f"of them, got {self.num_gpus!r}"
            )

    @property
    def need(self) -> dict[str, float]:
        """The resources of an actor, by Ray's names."""
        taken = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory or 0)}
        return {name: n for name, n in {**taken, **(self.resources or {})}.items() if n}

    def describe_runtime(self) -> dict[str, Any]:
        """The version of Ray; no cluster is started or reached."""
        return {"version": f"ray {load_ray().__version__}"}

    def build(self, model: Model) -> RaySession:
        """Load `model` in all actors at the same time.

        Raises:
            ConfigurationError: the engine or model can't be pickled, or this process is connected
                to another cluster.
            EngineUnavailableError: no cluster answers, it has no room for so many actors, or a node
                lacks what the engine needs.
            EvalutionError: what the build raised in an actor.
            EngineRuntimeError: actors ended too often, or one missed its deadline, while loading.
        """
        self.check()
        # Names what can't be sent; classes of a notebook go along by value, though.
        pack_configuration(self.inner)
        pack_configuration(model)
        _check_environment(self.runtime_env)
        with ExitStack() as resources:
            ray = resources.enter_context(connect(self.address, log_to_driver=self.log_to_driver))
            dispatcher = Dispatcher()
            resources.callback(dispatcher.close)
            self._check_room(ray)
            supervision = self._supervision(ray, dispatcher, model)
            supervision.start()
            return RaySession(
                supervision,
                resources.pop_all(),
                requests_limit=self.requests_limit,
                description={
                    "isolated": True,
                    "replicas": self.count,
                    "ray": ray.__version__,
                    "replica_resources": self.need,
                },
            )

    def _supervision(self, ray: Ray, dispatcher: Dispatcher, model: Model) -> Supervision:
        options = self.worker_options()
        dumps = ray.cloudpickle.dumps
        plan = ray.put(Plan(dumps(self.inner), dumps(model), _beat(options)))
        cluster = Cluster(
            ray,
            cast(Notes, import_module("ray.experimental.internal_kv")),
            dispatcher,
            partial(self._create, ray, plan),
            self.start_timeout,
            partial(self._no_room, ray),
        )
        return Supervision(self.count, lambda _: ActorWorker(cluster), options)

    def _create(self, ray: Ray, plan: Any, note: bytes) -> Actor:
        make = cast(MakesRemote, import_module("ray").remote)
        options: dict[str, Any] = {
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus,
            "resources": self.resources or {},
            "scheduling_strategy": self.placement,
            "max_concurrency": _CALLS,
            # The scheduler restarts actors and repeats requests: Ray can't separate a request that
            # kills its actor from the others that ran beside it.
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        if self.memory is not None:
            options["memory"] = self.memory
        if self.runtime_env is not None:
            options["runtime_env"] = self.runtime_env
        return make(SessionActor).options(**options).remote([plan], note)

    def _check_room(self, ray: Ray) -> None:
        nodes = ray.nodes()
        found = count_actors(nodes, self.need)
        if found >= self.count or self.autoscales:
            return
        raise EngineUnavailableError(
            f"the Ray cluster has room for {found} of {self.count} replicas, each of which takes "
            f"{format_resources(self.need)} ({format_nodes(nodes)}); ask for fewer, let each take "
            "less (num_cpus, num_gpus, memory, resources), add nodes, or set autoscales if the "
            "cluster adds them by itself"
        )

    def _no_room(self, ray: Ray) -> str:
        has = ray.available_resources()
        free = {name: has.get(name, 0.0) for name in self.need}
        return (
            f"it takes {format_resources(self.need)}, and free in all are "
            f"{format_resources(free)}; wait for others to end, let each replica take less, or "
            "raise start_timeout"
        )


def _check_environment(given: Mapping[str, Any] | None) -> None:
    """Refuse what Ray 2.60 only warns of, and leaves out."""
    load_ray()
    kind = cast(RuntimeEnv, import_module("ray.runtime_env").RuntimeEnv)
    # Plugins add fields of their own, which their node alone may know.
    if os.environ.get(_PLUGINS) is None:
        for name in given or {}:
            if name not in kind.known_fields:
                raise ConfigurationError(
                    f"option 'runtime_env' of engine RayReplicas has a field {name!r} that Ray "
                    f"doesn't know{did_you_mean(name, kind.known_fields)}; it would be left out"
                )


def _beat(options: WorkerOptions) -> float:
    """Return the seconds between an actor's heartbeats, which carry progress too."""
    deadlines = [options.request_timeout, options.heartbeat_timeout]
    return min([_LONGEST_BEAT_S, *(limit / _BEATS for limit in deadlines if limit is not None)])


def count_actors(nodes: Sequence[Mapping[str, Any]], need: Mapping[str, float]) -> int:
    """Return how many actors the living nodes could hold together if they were empty."""
    return sum(_count_on_node(node["Resources"], need) for node in nodes if node["Alive"])


def format_resources(resources: Mapping[str, float]) -> str:
    """Return resources in words: `CPU 2, GPU 1`."""
    shown = {
        name: amount for name, amount in sorted(resources.items()) if not name.startswith(_OBJECTS)
    }
    return (
        ", ".join(f"{name} {_format_amount(name, amount)}" for name, amount in shown.items())
        or "none"
    )


def format_nodes(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return each living node with its total resources."""
    return "; ".join(
        f"node {node['NodeManagerAddress']}: {format_resources(node['Resources'])}"
        for node in nodes
        if node["Alive"]
    )


def _count_on_node(has: Mapping[str, float], need: Mapping[str, float]) -> int:
    return min(int(has.get(name, 0.0) / amount + _LITTLE) for name, amount in need.items())


def _format_amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB" if name == "memory" else f"{amount:g}"
