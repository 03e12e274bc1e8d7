"""A process that drives actors through Ray's client: a script of `test_ray_cluster`."""

from __future__ import annotations

import sys

from evalution_core import EngineUnavailableError, GenerationRequest, Model
from evalution_enginekit.mock import Mock
from evalution_ray import RayReplicas
from evalution_ray.engine import RaySession

STARTS = 3


def connect(engine: RayReplicas) -> RaySession:
    """Build a session; try once more where Ray could not start its server for this client in time.

    Ray gives it 30 seconds, which a busy machine may take for the import of Ray alone.
    """
    for _ in range(STARTS - 1):
        try:
            return engine.build(Model("mock"))
        except EngineUnavailableError as error:
            print(error, file=sys.stderr)
    return engine.build(Model("mock"))


def main() -> None:
    engine = RayReplicas(Mock(), 2, sys.argv[1], num_cpus=0.5)
    requests = ((n, GenerationRequest(f"{n}", max_new_tokens=2)) for n in range(1000))
    with connect(engine) as session:
        found = list(session.generate_continuous(requests))
        replicas = session.describe_execution()["replicas"]
    print(f"{len(found)} answers, {len(dict(found))} keys, {replicas} replicas")


if __name__ == "__main__":
    main()
