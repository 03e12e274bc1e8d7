"""How much memory glibc keeps for the server's threads."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from typing import Any

import pytest

from evalution_openai.server import arenas


class Library:
    def __init__(self) -> None:
        self.options: list[tuple[int, int]] = []

    def mallopt(self, name: int, value: int) -> int:
        self.options.append((name, value))
        return 1


@pytest.mark.parametrize(
    ("system", "libc", "expected"),
    [
        ("linux", "glibc", [(-8, 2)]),
        ("linux", "", []),
        ("darwin", "", []),
        ("win32", "", []),
    ],
)
def test_only_glibc_is_told(
    monkeypatch: pytest.MonkeyPatch, system: str, libc: str, expected: list[tuple[int, int]]
) -> None:
    library = Library()
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    arenas.limit_malloc_arenas()
    assert library.options == expected


COUNT = """
import ctypes, sys, threading
from evalution_openai.server.arenas import limit_malloc_arenas

if sys.argv[1] == "limited":
    limit_malloc_arenas()
meeting = threading.Barrier(16)

def allocate():
    held = bytearray(10_000)
    meeting.wait()

threads = [threading.Thread(target=allocate) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
library.malloc_info(0, ctypes.c_void_p(library.fopen(b"/dev/stdout", b"w")))
library.fflush(None)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="no glibc here"
)
@pytest.mark.parametrize(("how", "is_few"), [("limited", True), ("as it is", False)])
def test_threads_share_two_pools(how: str, is_few: bool) -> None:
    environment = {name: text for name, text in os.environ.items() if "MALLOC" not in name}
    command = [sys.executable, "-c", COUNT, how]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (0 < told.stdout.count("<heap nr=") <= 2) == is_few, told.stdout


def test_the_command_limits_them_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    from evalution_openai.server import command

    def stop() -> Any:
        raise InterruptedError

    monkeypatch.setattr(command, "limit_malloc_arenas", stop)
    with pytest.raises(InterruptedError):
        command.serve("No such engine")
