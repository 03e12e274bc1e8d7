"""A server that was attacked has the memory of before again, within a fifth."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("uvicorn", reason="the extra `server` isn't installed: no uvicorn")
pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and glibc"),
]

GROWTH = 1.2
WAIT_S = 60.0
LONGEST = "Tom has 3 apples " * 61_000
"""Just below the limit of a text, and a second of work."""
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20}
WIDE = {"prompt": "Tom has", "max_tokens": 50, "ignore_eos": True, "n": 100, "logprobs": 20}


@contextmanager
def serve() -> Iterator[tuple[subprocess.Popen[str], int]]:
    options = ["--engine", "Reference", "--port", "0", "--no-request-log"]
    command = [sys.executable, "-m", "evalution", "serve", "builtin:tiny", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r":(\d+)/v1", process.stdout.readline())
            assert found is not None
            yield process, int(found[1])
        finally:
            process.terminate()


def read_memory(process: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1])


def leave_unread(port: int, bodies: list[tuple[str, dict[str, Any]]]) -> None:
    """Send bodies, each on a connection, and close all of them once the first is worked on."""
    with ExitStack() as stack:
        for path, body in bodies:
            content = json.dumps(body).encode()
            plug = stack.enter_context(closing(socket.create_connection(("127.0.0.1", port))))
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
            plug.sendall(head.encode() + b"\r\n" + content)
        assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200


def test_memory_after_an_attack_is_that_of_before() -> None:
    with serve() as (process, port), httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(5):
            client.post("/v1/chat/completions", json=CHAT)
        client.post("/v1/completions", json=WIDE, timeout=WAIT_S)
        before = read_memory(process.pid)
        leave_unread(port, [("/tokenize", {"prompt": LONGEST})] * 8)
        leave_unread(port, [("/v1/completions", WIDE)] * 8)
        for _ in range(3):
            assert client.post("/tokenize", json={"prompt": LONGEST}, timeout=WAIT_S).is_success
            too_long = {"prompt": LONGEST * 15}
            assert client.post("/v1/completions", json=too_long).status_code == 400
        end = time.monotonic() + WAIT_S
        while (now := read_memory(process.pid)) > GROWTH * before and time.monotonic() < end:
            time.sleep(0.1)
        print(f"{before >> 10} MiB before, {now >> 10} after")
        assert now <= GROWTH * before
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
