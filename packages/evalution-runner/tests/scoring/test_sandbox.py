"""Programs that attack the machine they run on: each lock, and what a pass is."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from evalution.scoring import sandbox
from evalution.scoring.sandbox import (
    Limits,
    check_execution,
    find_missing_locks,
    run_program,
)
from evalution_core import ConfigurationError

LIMITS = Limits(time_s=20.0, memory_bytes=1 << 30)

pytestmark = pytest.mark.skipif(
    os.name != "posix" or bool(find_missing_locks()),
    reason="needs Linux 6.2 or newer with Landlock and seccomp",
)


def run(source: str, limits: Limits = LIMITS) -> str:
    return run_program(source, limits, "sandbox")


HARMLESS = """
import asyncio, json, math, re, threading

async def answer(): return 1

assert math.sqrt(4) == 2 and asyncio.run(answer()) == 1
thread = threading.Thread(target=print)
thread.start()
thread.join()
with open("mine", "w") as file: file.write("x")
assert open("mine").read() == "x"
"""


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        (HARMLESS, "passed"),
        ("assert 1 == 2, 'no'", "AssertionError: no"),
        ("def f(:", "SyntaxError"),
        ("import sys\nsys.exit(input())", "EOFError"),
        ("import sys\nsys.exit(0)", "SystemExit: 0"),
        ("class passed(Exception):\n def __str__(self): 1 / 0\nraise passed", "passed: "),
        ("import os\nos._exit(0)", "ended before its tests did, with exit status 0"),
    ],
)
def test_a_program_passes_if_it_ends_without_an_exception(source: str, detail: str) -> None:
    verdict = run(source)
    assert verdict.startswith(detail)


ATTACKS = {
    "fork bomb": "while True: os.fork()",
    "process": "subprocess.run(['true'])",
    "exec": "os.execv('/bin/true', ['true'])",
    "killing the parent": "os.kill(os.getppid(), 9)",
    "killing its group": "os.killpg(os.getpgid(os.getppid()), 9)",
    "network": "socket.socket()",
    "local services": "socket.socket(socket.AF_UNIX)",
    "environment of the parent": "open(f'/proc/{os.getppid()}/environ').read()",
    "leaving its group": "os.setsid()",
    "limits of others": "resource.prlimit(1, resource.RLIMIT_CPU)",
    "reading the system": "open('/etc/passwd').read()",
    "writing to /tmp": "open('/tmp/escaped', 'w')",
    "permissions": "os.chmod('/tmp', 0o1777)",
    "clock": "time.clock_settime(time.CLOCK_REALTIME, time.time())",
    "name of the machine": "socket.sethostname(socket.gethostname())",
}
ATTEMPT = """
try:
    {attack}
    done.append({name!r})
except PermissionError: pass
"""


def test_attacks_are_not_permitted() -> None:
    attempts = [ATTEMPT.format(name=name, attack=attack) for name, attack in ATTACKS.items()]
    head = "import os, resource, socket, subprocess, time\ndone = []\n"
    assert run(f"{head}{''.join(attempts)}\nassert not done, done") == "passed"


def test_a_program_can_neither_read_nor_write_nor_delete_a_file_outside(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("secret")
    attempts = [
        f"open({str(secret)!r}).read()",
        f"open({str(secret)!r}, 'w')",
        f"open({str(secret)!r}, 'a')",
        f"os.remove({str(secret)!r})",
        f"os.truncate({str(secret)!r}, 0)",
        f"os.rename({str(secret)!r}, 'mine')",
        f"os.link({str(secret)!r}, 'mine')",
        f"os.mkdir({str(tmp_path / 'new')!r})",
        f"os.listdir({str(tmp_path)!r})",
    ]
    source = "import os\ndone = []\n" + "".join(
        f"try:\n    {attempt}\n    done.append({attempt!r})\nexcept OSError: pass\n"
        for attempt in attempts
    )
    assert run(f"{source}assert not done, done") == "passed"
    assert secret.read_text() == "secret"
    assert [file.name for file in tmp_path.iterdir()] == ["token"]


def test_a_program_sees_an_empty_folder_and_no_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    verdict = run(
        "import os\nassert not os.listdir('.')\nassert os.getcwd() == os.environ['HOME']\n"
        "assert set(os.environ) <= {'HOME', 'TMPDIR', 'LC_CTYPE'}, os.environ\n"
        "open('left', 'w')\nassert False, os.getcwd()"
    )
    folder = Path(verdict.removeprefix("AssertionError: "))
    assert folder.name.startswith("evalution-")
    assert not folder.exists()


def test_an_allocation_of_10_gb_is_refused() -> None:
    assert run("x = bytearray(10 * 10**9)") == "MemoryError: "


@pytest.mark.parametrize("ignored", ["", "import signal\nsignal.signal(signal.SIGALRM, print)\n"])
def test_an_endless_loop_is_killed(ignored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "START_LIMIT_S", 0.6)
    before = time.monotonic()
    verdict = run(f"{ignored}while True: pass", Limits(0.2, 1 << 30))
    assert verdict == "killed: takes longer than 0.2 s"
    assert time.monotonic() - before < 60


def test_huge_output_is_dropped_and_a_huge_file_refused() -> None:
    assert run("for _ in range(20): print('x' * 10**6)") == "passed"
    assert run("open('f', 'w').write('x' * 2 * 10**7)").startswith("OSError: [Errno 27]")
    flooded = run(
        "import os\nfor fd in range(3, 20):\n"
        " try: os.write(fd, b'x' * 2 * 10**7)\n except OSError: pass"
    )
    assert flooded != "passed"


def test_code_is_refused_without_permission() -> None:
    with pytest.raises(ConfigurationError, match="write execute: sandbox to allow that"):
        check_execution(None)
    assert check_execution("sandbox") == ()


def test_a_system_that_lacks_a_lock_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "find_missing_locks", lambda: ("memory", "the network"))
    with pytest.raises(
        ConfigurationError,
        match="this system can't lock memory, nor the network; write execute: partial",
    ):
        check_execution("sandbox")
    assert check_execution("partial") == ("memory", "the network")


def test_a_process_without_all_locks_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = Path(sandbox.__file__).with_name("locked_process.py").read_text()
    without = tmp_path / "locked_process.py"
    without.write_text(source.replace('"x86_64"', '"other"').replace('"aarch64"', '"another"'))
    monkeypatch.setattr(sandbox, "__file__", str(tmp_path / "sandbox.py"))
    assert run("pass") == "not run: a lock is missing"
    partial = run_program("import os\nos.fork()", LIMITS, "partial")
    assert partial != "passed" or os.geteuid() == 0
    assert json.dumps(partial)
