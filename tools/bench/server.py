"""Measure the server: its throughput beside the session's, a request's overhead, and a long load.

    server.py throughput     the same requests by HTTP and in process, pairs interleaved
    server.py overhead       one client, the mock engine; NAME=URL=MODEL adds a foreign server
    server.py load           many clients for a minute: no 5xx, all answered, memory stays
    server.py application    the event loop's processor time a request, without HTTP or a model

The server runs on one core with one BLAS thread, the clients on the other. Shapes stand in
server.toml. Needs the package with its extra `server`, and psutil:
`uv run --with psutil tools/bench/server.py throughput`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

SERVER_CORE, CLIENT_CORE = 0, 1
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
CONFIG = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))

IN_PROCESS = """
import json, sys, time
from collections import deque
from evalution_core import GenerationRequest, Model, load_engine
with load_engine(sys.argv[1])().build(Model(path=sys.argv[2])) as session:
    print("ready", flush=True)
    for line in sys.stdin:
        requests = [GenerationRequest(input_ids=i, max_new_tokens=n, ignore_eos=True)
                    for i, n in json.loads(line)]
        wall, processor = time.perf_counter(), time.process_time()
        deque(session.generate_continuous(enumerate(requests)), maxlen=0)
        took = time.perf_counter() - wall, time.process_time() - processor
        print(json.dumps(took), flush=True)
"""


@dataclass(frozen=True)
class Took:
    """Seconds by the clock, and of processor time over all threads."""

    wall: float
    processor: float


def pinned(command: list[str], core: int) -> list[str]:
    return ["taskset", "-c", str(core), *command]


@contextmanager
def served(engine: str, model: str, *more: str) -> Iterator[tuple[str, psutil.Process]]:
    """Base URL and process of `evalution serve`, without a request log."""
    options = ["--engine", engine, "--port", "0", "--name", "bench", "--no-request-log", *more]
    command = [sys.executable, "-m", "evalution", "serve", model, *options]
    process = subprocess.Popen(
        pinned(command, SERVER_CORE),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **THREADS},
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        yield first.split(" on ")[1].split("/v1")[0], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def shapes(config: dict[str, Any], count: int) -> list[tuple[list[int], int]]:
    chance = random.Random(CONFIG["seed"])
    return [
        (
            [chance.randrange(32, 256) for _ in range(chance.choice(config["prompt_tokens"]))],
            chance.choice(config["new_tokens"]),
        )
        for _ in range(count)
    ]


def body(shape: tuple[list[int], int], **more: Any) -> dict[str, Any]:
    token_ids, length = shape
    return {"prompt": token_ids, "max_tokens": length, "ignore_eos": True, **more}


class Client:
    """One connection that is kept, and no more of HTTP than these servers need."""

    def __init__(self, url: str):
        self._host, port = url.removeprefix("http://").split(":")
        self._port = int(port)
        self._pipe: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, content: dict[str, Any]) -> int:
        if self._pipe is None:
            self._pipe = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._pipe
        text = json.dumps(content).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\n\r\n"
        )
        writer.write(head.encode() + text)
        answer = await reader.readuntil(b"\r\n\r\n")
        fields = dict(
            line.lower().split(b": ", 1) for line in answer.split(b"\r\n")[1:] if b": " in line
        )
        if fields.get(b"transfer-encoding") == b"chunked":
            while size := int(await reader.readline(), 16):
                await reader.readexactly(size + 2)
            await reader.readline()
        else:
            await reader.readexactly(int(fields[b"content-length"]))
        if fields.get(b"connection") == b"close":
            self.close()
        return int(answer.split(b" ", 2)[1])

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe[1].close()
        self._pipe = None


async def sent(url: str, requests: list[tuple[list[int], int]], clients: int) -> float:
    """Seconds until all are answered, a fixed number of them in flight."""
    left = iter(requests)

    async def work() -> None:
        client = Client(url)
        for shape in left:
            status = await client.post("/v1/completions", body(shape))
            assert status == 200, status
        client.close()

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(clients)))
    return time.perf_counter() - began


@contextmanager
def alone(engine: str, model: str) -> Iterator[Callable[[str], Took]]:
    """Yield a function that runs a line of requests through a session in a process of its own."""
    process = subprocess.Popen(
        pinned([sys.executable, "-c", IN_PROCESS, engine, model], SERVER_CORE),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **THREADS},
    )
    feed, answers = process.stdin, process.stdout
    assert feed is not None
    assert answers is not None
    answers.readline()

    def run(line: str) -> Took:
        feed.write(line)
        feed.flush()
        return Took(*json.loads(answers.readline()))

    try:
        yield run
    finally:
        feed.close()
        process.wait()


def pairs_of_a_start(config: dict[str, Any]) -> list[tuple[Took, Took]]:
    """Return the times of the same requests in process and by HTTP, both sides freshly started."""
    requests = shapes(config, config["requests"])
    line = json.dumps(requests) + "\n"
    found: list[tuple[Took, Took]] = []
    with (
        alone("Reference", "builtin:tiny") as in_process,
        served("Reference", "builtin:tiny") as (url, process),
    ):

        def by_http() -> Took:
            before = process.cpu_times()
            wall = asyncio.run(sent(url, requests, config["clients"]))
            after = process.cpu_times()
            return Took(wall, after.user + after.system - before.user - before.system)

        in_process(line)
        by_http()
        for pair in range(config["pairs"]):
            if pair % 2:
                http, session = by_http(), in_process(line)
            else:
                session, http = in_process(line), by_http()
            found.append((session, http))
    return found


def shares(pairs: list[tuple[Took, Took]]) -> str:
    """The server's throughput as a share of the session's, medians of pairs."""
    clock = statistics.median(one.wall / http.wall for one, http in pairs)
    processor = statistics.median(one.processor / http.processor for one, http in pairs)
    return f"{clock:.3f} of in process by the clock, {processor:.3f} by processor time"


def throughput() -> None:
    config = CONFIG["throughput"]
    pairs: list[tuple[Took, Took]] = []
    for start in range(config["starts"]):
        found = pairs_of_a_start(config)
        print(f"start {start + 1}: {shares(found)}", flush=True)
        pairs += found
    print(f"all {len(pairs)} pairs: {shares(pairs)}; the bound is {config['least']}")


async def one_by_one(url: str, path: str, content: dict[str, Any], count: int) -> float:
    client = Client(url)
    await client.post(path, content)
    took: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        status = await client.post(path, content)
        took.append(time.perf_counter() - began)
        assert status == 200, status
    client.close()
    return statistics.median(took)


def overhead(foreign: list[str]) -> None:
    """Each of `foreign` is NAME=URL=MODEL."""
    config = CONFIG["overhead"]
    with served("evalution_enginekit.mock:Mock", "mock") as (url, _):
        servers = {"evalution": (url, "bench")}
        for argument in foreign:
            name, base, model = argument.split("=", 2)
            servers[name] = (base, model)
        found: dict[str, list[float]] = {name: [] for name in servers}
        for _ in range(config["pairs"]):
            for name, (base, model) in servers.items():
                content = {
                    "model": model,
                    "messages": [{"role": "user", "content": "Hello"}],
                    "max_tokens": config["new_tokens"],
                    "temperature": 0,
                }
                one = one_by_one(base, "/v1/chat/completions", content, config["requests"])
                found[name].append(asyncio.run(one))
    for name, seconds in found.items():
        print(f"{name:<24}{1e3 * statistics.median(seconds):8.2f} ms a request")


@dataclass
class Seen:
    statuses: Counter[int] = field(default_factory=Counter[int])
    seconds: list[float] = field(default_factory=list[float])
    lost: int = 0


async def hammer(url: str, config: dict[str, Any], process: psutil.Process) -> Seen:
    seen = Seen()
    end = time.monotonic() + config["seconds"]
    chance = random.Random(CONFIG["seed"])
    kinds = shapes(config, 512)

    async def work() -> None:
        client = Client(url)
        while time.monotonic() < end:
            shape = chance.choice(kinds)
            began = time.monotonic()
            try:
                if chance.random() < 0.3:
                    content = {"context_input_ids": shape[0], "continuation_input_ids": [40, 41]}
                    status = await client.post("/v1/eval/loglikelihood", content)
                else:
                    content = body(shape, stream=chance.random() < 0.3)
                    status = await client.post("/v1/completions", content)
            except (OSError, asyncio.IncompleteReadError):
                seen.lost += 1
                client.close()
                continue
            seen.statuses[status] += 1
            seen.seconds.append(time.monotonic() - began)
            if status == 429:
                await asyncio.sleep(1)
        client.close()

    async def watch() -> list[int]:
        await asyncio.sleep(config["rss_from"])
        first = process.memory_info().rss
        await asyncio.sleep(config["seconds"] - config["rss_from"] - 1)
        return [first, process.memory_info().rss]

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(work() for _ in range(config["clients"])))
    first, last = await watching
    growth = last / first - 1
    print(f"memory {first >> 20} MiB, then {last >> 20} MiB: {growth:+.1%}")
    assert growth <= config["rss_growth"], growth
    return seen


def quantile(page: str, name: str, kind: str, share: float) -> str:
    """The bucket of a histogram under which that share of its observations lies."""
    buckets = [
        (line.split('le="')[1].split('"')[0], float(line.split()[-1]))
        for line in page.splitlines()
        if line.startswith(f"{name}_bucket") and f'kind="{kind}"' in line
    ]
    total = buckets[-1][1]
    return next(bound for bound, count in buckets if count >= share * total)


def load() -> None:
    config = CONFIG["load"]
    with served("Reference", "builtin:tiny") as (url, process):
        seen = asyncio.run(hammer(url, config, process))
        import urllib.request

        page = urllib.request.urlopen(f"{url}/metrics").read().decode()
    seconds = sorted(seen.seconds)
    print(f"{len(seconds)} answers, statuses {dict(seen.statuses)}, lost {seen.lost}")
    print(f"p50 {seconds[len(seconds) // 2]:.2f} s, p99 {seconds[len(seconds) * 99 // 100]:.2f} s")
    for kind in ("generation", "loglikelihood"):
        bound = quantile(page, "evalution_queue_seconds", kind, 0.99)
        print(f"p99 of queueing, {kind}: up to {bound} s")
    assert not seen.lost
    assert all(status < 500 for status in seen.statuses)


async def post(app: Any, content: bytes, port: int) -> None:
    """Send one request to an ASGI application as a server would; the client stays until then."""
    has_sent, forever = False, asyncio.get_running_loop().create_future()

    async def receive() -> Any:
        nonlocal has_sent
        if has_sent:
            await forever
        has_sent = True
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200, message

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/completions",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", port),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)


def application() -> None:
    from evalution_core import Model
    from evalution_enginekit.mock import Mock
    from evalution_openai.server import build_openai_compatible_server

    config = CONFIG["application"]
    kinds = [json.dumps(body(shape)).encode() for shape in shapes(config, config["requests"])]
    session = Mock().build(Model("mock"))
    app = build_openai_compatible_server(session=session, log_requests=False)

    async def measure() -> list[float]:
        found: list[float] = []
        for _ in range(config["rounds"]):
            left = iter(kinds)

            async def work(port: int) -> None:
                for content in left:  # noqa: B023 - they share the requests of a round
                    await post(app, content, port)

            began = time.thread_time()
            await asyncio.gather(*(work(port) for port in range(config["clients"])))
            found.append((time.thread_time() - began) / len(kinds))
        return found[1:]

    found = asyncio.run(measure())
    session.close()
    middle = statistics.median(found)
    print(f"{1e6 * min(found):.1f} us a request at least, median {1e6 * middle:.1f}")


def main() -> None:
    os.sched_setaffinity(0, {CLIENT_CORE})
    mode, *rest = sys.argv[1:] or ["throughput"]
    modes = {
        "throughput": throughput,
        "overhead": lambda: overhead(rest),
        "load": load,
        "application": application,
    }
    modes[mode]()


if __name__ == "__main__":
    main()
