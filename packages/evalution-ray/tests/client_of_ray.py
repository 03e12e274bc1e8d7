"""A process that drives actors through Ray's client: a script of `test_ray_cluster`."""

from __future__ import annotations

import sys

from evalution_core import GenerationRequest, Model
from evalution_enginekit.mock import Mock
from evalution_ray import RayReplicas


def main() -> None:
    engine = RayReplicas(Mock(), 2, sys.argv[1], num_cpus=0.5)
    requests = ((n, GenerationRequest(f"{n}", max_new_tokens=2)) for n in range(1000))
    with engine.build(Model("mock")) as session:
        found = list(session.generate_continuous(requests))
        replicas = session.describe_execution()["replicas"]
    print(f"{len(found)} answers, {len(dict(found))} keys, {replicas} replicas")


if __name__ == "__main__":
    main()
