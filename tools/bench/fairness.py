"""Measure how long one small call waits beside heavy ones, as a multiple of its time alone.

    fairness.py               every case of fairness.toml
    fairness.py NAME …        these cases

A case starts a server, times a light client alone, and then again beside heavy clients until those
have their answers. `tokenize` sends long texts whose clients leave, and looks at the time of a chat
and at the memory afterwards. `many` has 256 equal clients, and counts the answers of each. Server
and clients are pinned as in server.py: `uv run --with psutil tools/bench/fairness.py`.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
from server import CLIENT_CORE, Client, served

CONFIG = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
ENGINE, MODEL = "Reference", "builtin:tiny"
TEXT = "Tom has 3 apples and gets 4. Now he has"
LIGHT = {
    "completion": ("/v1/completions", {"prompt": "Tom has", "max_tokens": 8, "ignore_eos": True}),
    "pair": ("/v1/eval/loglikelihood", {"context": "Tom has", "continuation": " 7"}),
}


def make_heavy(case: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Make the path and the body of a heavy call."""
    if pairs := case.get("pairs"):
        asked = [{"context": f"{i}: {TEXT}", "continuation": f" {i}"} for i in range(pairs)]
        return "/v1/eval/loglikelihood", {"requests": asked}
    body: dict[str, Any] = {"max_tokens": case["tokens"], "ignore_eos": True}
    if choices := case.get("choices"):
        more = {"n": choices, "logprobs": case["logprobs"], "temperature": 1}
        return "/v1/completions", {"prompt": TEXT, **body, **more}
    return "/v1/completions", {"prompt": [f"{i}: {TEXT}" for i in range(case["prompts"])], **body}


async def time_call(client: Client, path: str, body: dict[str, Any]) -> float:
    began = time.perf_counter()
    status = await client.post(path, body)
    assert status == 200, status
    return time.perf_counter() - began


async def send_light(
    url: str, kind: str, is_over: Callable[[], bool], pause: float, least: int
) -> list[float]:
    """Send one light call after the other on one connection; return their seconds."""
    client = Client(url)
    took: list[float] = []
    while not is_over() or len(took) < least:
        took.append(await time_call(client, *LIGHT[kind]))
        await asyncio.sleep(pause)
    client.close()
    return took


def quantile(seconds: list[float], share: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


def describe(seconds: list[float]) -> str:
    middle, late, longest = statistics.median(seconds), quantile(seconds, 0.99), max(seconds)
    return f"p50 {1e3 * middle:6.1f} p99 {1e3 * late:6.1f} longest {1e3 * longest:6.1f} ms"


async def measure_case(url: str, case: dict[str, Any]) -> str:
    kind, pause = case.get("light", "completion"), CONFIG["pause"]
    await send_light(url, kind, lambda: True, pause, CONFIG["alone"])  # warms up
    alone = await send_light(url, kind, lambda: True, pause, CONFIG["alone"])
    path, body = make_heavy(case)
    heavy = [
        asyncio.create_task(time_call(Client(url), path, body)) for _ in range(case["clients"])
    ]
    await asyncio.sleep(CONFIG["head_start"])
    beside = await send_light(url, kind, lambda: all(one.done() for one in heavy), pause, 1)
    took = max(await asyncio.gather(*heavy))
    ratio = quantile(beside, 0.99) / quantile(alone, 0.99)
    return (
        f"alone {describe(alone)}, beside {describe(beside)}, p99 {ratio:5.1f} times; "
        f"{len(beside):4} light calls in {took:5.1f} s"
    )


async def attack_tokenize(url: str, case: dict[str, Any], process: psutil.Process) -> str:
    chat = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
    client = Client(url)
    alone = statistics.median([await time_call(client, *chat) for _ in range(3)])
    before = process.memory_info().rss
    body = {"prompt": TEXT * (case["bytes"] // len(TEXT))}
    attackers = [Client(url) for _ in range(case["clients"])]
    posts = [asyncio.create_task(one.post("/tokenize", body)) for one in attackers]
    await asyncio.wait(posts, timeout=case["leave_after"])
    answered = [post.result() for post in posts if post.done()]
    for post, attacker in zip(posts, attackers, strict=True):
        post.cancel()
        attacker.close()
    beside = await time_call(client, *chat)
    await time_call(client, "/tokenize", {"prompt": TEXT * 1000})  # behind what the attack left
    await asyncio.sleep(case["settle"])
    after = process.memory_info().rss
    return (
        f"answered {answered}, then a chat takes {beside:.2f} s (alone {alone:.2f}); "
        f"memory {before >> 20} MiB, then {after >> 20}: {after / before - 1:+.0%}"
    )


async def count_answers(url: str, case: dict[str, Any], process: psutil.Process) -> str:
    """Count the answers of many clients; memory is that at the end beside that after a tenth."""
    end = time.monotonic() + case["seconds"]
    before = 0
    path, body = LIGHT["completion"]
    counts = [0] * case["clients"]
    lost = 0

    async def work(index: int) -> None:
        nonlocal lost
        client = Client(url)
        while time.monotonic() < end:
            try:
                status = await client.post(path, body)
            except (OSError, asyncio.IncompleteReadError):
                status = 0
            counts[index] += status == 200
            lost += status != 200
        client.close()

    async def note_memory() -> None:
        nonlocal before
        await asyncio.sleep(case["seconds"] / 10)  # caches of the batch are there by now
        before = process.memory_info().rss

    await asyncio.gather(note_memory(), *map(work, range(case["clients"])))
    mean = statistics.mean(counts)
    after = process.memory_info().rss
    return (
        f"{sum(counts)} answers, {lost} lost; a client has {min(counts) / mean:.2f} to "
        f"{max(counts) / mean:.2f} of the mean; memory {after / before - 1:+.0%}"
    )


def main() -> None:
    os.sched_setaffinity(0, {CLIENT_CORE})
    for name in sys.argv[1:] or CONFIG["case"]:
        case = CONFIG["case"][name]
        with served(ENGINE, MODEL, *case.get("server", ())) as (url, process):
            work: Awaitable[str]
            if "bytes" in case:
                work = attack_tokenize(url, case, process)
            elif "seconds" in case:
                work = count_answers(url, case, process)
            else:
                work = measure_case(url, case)
            print(f"{name:<24}{asyncio.run(work)}", flush=True)


if __name__ == "__main__":
    main()
