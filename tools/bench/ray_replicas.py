"""Print what a second Ray replica brings, and what replicas cost the process that drives them.

The ratio's peer is one replica, given the same requests; pairs are interleaved, the sessions stay
open. By the clock it is the time of one replica over that of two. In processor time it is what the
one actor worked over what the busier of two did: how well the work is divided, whatever else the
machine does meanwhile. The costs' peer is the runner's own `Replicas`. Shapes stand in
ray_replicas.toml; run it in the environment `ray` of tools/envs.
"""

from __future__ import annotations

import queue
import statistics
import time
import tomllib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from evalution.replicas import Replicas
from evalution_core import BaseEngine, BaseInferenceSession, LoglikelihoodRequest, Model
from evalution_enginekit.mock import MOCK_CAPABILITIES, Mock, MockSession
from evalution_ray import RayReplicas
from evalution_reference.engine import Reference

CONFIG = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


class BurningSession(MockSession):
    def __init__(self, seconds: float):
        super().__init__("mock", 512, 8)
        self._seconds = seconds

    def _score(self, token_ids: Sequence[int], start: int) -> Any:
        end = time.thread_time() + self._seconds
        while time.thread_time() < end:
            pass
        return super()._score(token_ids, start)


@dataclass(slots=True)
class Burning(BaseEngine):
    """The mock, at the price of so many milliseconds of processor time for each score."""

    work_ms: float = 0.0

    capabilities = MOCK_CAPABILITIES

    def build(self, model: Model) -> BurningSession:
        return BurningSession(self.work_ms / 1000)


@dataclass(frozen=True)
class Took:
    wall: float
    driver: float
    busiest: float
    """Processor time of the driver, and of the actor that had most to do."""


def actors() -> list[psutil.Process]:
    processes = psutil.Process().children(recursive=True)
    return [process for process in processes if process.name().startswith("ray::")]


def processor_times() -> dict[int, float]:
    times = {process.pid: process.cpu_times() for process in actors()}
    return {pid: found.user + found.system for pid, found in times.items()}


def took(session: BaseInferenceSession, requests: Sequence[LoglikelihoodRequest]) -> Took:
    before, driver, wall = processor_times(), time.process_time(), time.perf_counter()
    deque(session.loglikelihood_continuous(enumerate(requests)), maxlen=0)
    wall, driver = time.perf_counter() - wall, time.process_time() - driver
    after = processor_times()
    return Took(wall, driver, max(after[pid] - before.get(pid, 0.0) for pid in after))


def scaling(engine: BaseEngine, model: Model, requests: Sequence[LoglikelihoodRequest]) -> None:
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(RayReplicas(engine, count, num_cpus=0.1).build(model))
            for count in (1, 2)
        )
        for session in (one, two):
            took(session, requests[:20])
        pairs = []
        for pair in range(CONFIG["pairs"]):
            order = (one, two) if pair % 2 else (two, one)
            found = {session: took(session, requests) for session in order}
            pairs.append((found[one], found[two]))
    clock = statistics.median(a.wall / b.wall for a, b in pairs)
    processor = statistics.median(a.busiest / b.busiest for a, b in pairs)
    # Of the time that the actors worked, since the clock runs while others have the processor.
    driver = statistics.median(b.driver / b.busiest for _, b in pairs)
    by_clock = statistics.median(b.driver / b.wall for _, b in pairs)
    print(
        f"{type(engine).__name__:<10} two replicas over one: {clock:.2f} by the clock "
        f"({', '.join(f'{a.wall / b.wall:.2f}' for a, b in pairs)}), {processor:.2f} in processor "
        f"time; the driver takes {100 * by_clock:.1f} % of a core by the clock, "
        f"{100 * driver:.1f} % of what the busier actor works"
    )


def cost(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def calls(session: Any) -> int:
    return sum(seat.worker._number for seat in session._scheduler.seats)


class Echo:
    """Answers calls as an actor does, without anything behind them."""

    def exchange(self, number: int, messages: bytes) -> bytes:
        return messages


def call_costs(trips: int, pairs: int) -> list[float]:
    """Return the driver's seconds for a call, with nothing but calls."""
    ray: Any = import_module("ray")
    echo = ray.remote(Echo).options(num_cpus=0.1, max_concurrency=4).remote()
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def call_all() -> None:
        for number in range(trips):
            echo.exchange.remote(number, b"x" * 2000).future().add_done_callback(answers.put)
            answers.get().result()

    call_all()
    return [cost(call_all) / trips for _ in range(pairs)]


def costs(model: Model) -> None:
    requests = plain(CONFIG["light_requests"])

    def all_of(session: BaseInferenceSession) -> Callable[[], object]:
        return lambda: deque(session.loglikelihood_continuous(enumerate(requests)), maxlen=0)

    with (
        Replicas(Mock(), 2).build(model) as local,
        RayReplicas(Mock(), 2, num_cpus=0.1).build(model) as remote,
    ):
        per_call = call_costs(CONFIG["round_trips"], CONFIG["pairs"])
        per_request, of_local, batch = [], [], []
        for price in per_call:
            before = calls(remote)
            paid = cost(all_of(remote))
            made = calls(remote) - before
            per_request.append((paid - made * price) / len(requests))
            batch.append(len(requests) / made)
            of_local.append(cost(all_of(local)) / len(requests))
    call, request, own = (
        1e6 * statistics.median(found) for found in (per_call, per_request, of_local)
    )
    size = statistics.median(batch)
    print(
        f"the driver's processor time: {call:.0f} us a call, {request:.0f} us a request; "
        f"{request + call / size:.0f} us a request with {size:.1f} requests a call; "
        f"Replicas: {own:.0f} us a request"
    )


def plain(count: int) -> list[LoglikelihoodRequest]:
    return [LoglikelihoodRequest(f"Question {n}:", " yes") for n in range(count)]


def main() -> None:
    words = "word " * CONFIG["text_words"]
    texts = [
        LoglikelihoodRequest(f"{n} {words}", " yes") for n in range(CONFIG["reference_requests"])
    ]
    # One session holds the cluster that all others use.
    with RayReplicas(Mock(), 1, num_cpus=0.1).build(Model("bench")):
        costs(Model("bench"))
        scaling(Burning(CONFIG["work_ms"]), Model("bench"), plain(CONFIG["requests"]))
        scaling(Reference(), Model("builtin:tiny"), texts)
    print(f"bounds: {CONFIG['bound_ratio']}, {100 * CONFIG['bound_driver']:.0f} % of a core")


if __name__ == "__main__":
    main()
