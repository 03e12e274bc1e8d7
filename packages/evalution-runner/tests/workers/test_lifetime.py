"""How worker processes end: with their session, their parent, or the worker that began them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalution.replicas import Replicas
from evalution.workers import SupervisedSession
from evalution.workers.process import kill_tree
from evalution_core import EngineRuntimeError, GenerationRequest, SessionClosedError

HERE = Path(__file__).parent
WAIT_S = 60
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

Build = Callable[..., SupervisedSession]


def ask(number: int) -> GenerationRequest:
    return GenerationRequest(str(number), max_new_tokens=2)


@linux
def test_closing_ends_all_processes(
    build: Build, engines: Any, tmp_path: Path, processes: Any
) -> None:
    file = tmp_path / "pids"
    session = build(engines.Parental(str(file)))
    pids = [int(pid) for pid in file.read_text().split()]
    assert processes.are_running(*pids) == pids
    session.close()
    assert not processes.are_running(*pids)


PROGRAM = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from evalution.workers import build_supervised
from evalution_core import Model
from worker_engines import Parental
session = build_supervised(Parental(sys.argv[2]), Model("mock"))
print("up", flush=True)
threading.Event().wait()
"""


@linux
def test_workers_of_a_worker_end_with_it(
    build: Build, engines: Any, tmp_path: Path, processes: Any
) -> None:
    engine = Replicas(engine=engines.Troubled(folder=str(tmp_path)), replicas=2)
    session = build(engine, restarts=0)
    pids = processes.builders(tmp_path)
    assert len(pids) == 2
    status = Path(f"/proc/{pids[0]}/stat").read_text()
    outer = int(status.rpartition(")")[2].split()[1])
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # they can't see that nobody wants them any more
    os.kill(outer, signal.SIGKILL)
    with pytest.raises(EngineRuntimeError, match="worker"):
        session.generate([ask(0)])
    processes.wait_until_gone(*pids)


def test_no_thread_outlives_a_session(build: Build, engines: Any) -> None:
    def own() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if "evalution" in thread.name}

    before = own()
    session = build(engines.Troubled(), workers=2)
    session.generate([ask(0)])
    begun = own() - before
    assert begun
    session.close()
    for thread in begun:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in begun)


@linux
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent(
    tmp_path: Path, sign: signal.Signals, processes: Any
) -> None:
    file = tmp_path / "pids"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(HERE), str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        assert list(tmp_path.glob("evalution-worker-*"))
        pids = [int(pid) for pid in file.read_text().split()]
        assert processes.are_running(*pids) == pids
        program.send_signal(sign)
    processes.wait_until_gone(*pids)
    assert not list(tmp_path.glob("evalution-worker-*"))


LOADING = """
import sys
sys.path.insert(0, sys.argv[1])
from evalution.workers import build_supervised
from evalution_core import Model
from worker_engines import Unbuildable
build_supervised(Unbuildable("hang", sys.argv[2]), Model("mock"))
"""


@linux
def test_worker_that_loads_a_model_ends_with_its_parent(tmp_path: Path, processes: Any) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LOADING, str(HERE), str(tmp_path)], stderr=subprocess.DEVNULL
    ) as program:
        while not (files := list(tmp_path.iterdir())):
            os.sched_yield()
        (pid,) = (int(file.name) for file in files)
        program.kill()
    processes.wait_until_gone(pid)


@posix
def test_session_in_a_fork_is_refused_and_closing_it_there_leaves_the_workers(
    build: Build, engines: Any
) -> None:
    session = build(engines.Troubled())
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(WAIT_S)
        for use in (lambda: session.generate([ask(0)]), session.check, session.identity):
            try:
                use()
            except SessionClosedError as error:
                os.write(writer, f"{error}\n".encode())
        session.close()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as shown:
        lines = shown.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    assert lines == 3 * [
        f"the session was built in process {os.getpid()} and can't be used in a fork of it; build "
        "a session there"
    ]
    session.generate([ask(0)])


@posix
def test_interrupt_is_the_parents_business(
    build: Build, engines: Any, tmp_path: Path, processes: Any
) -> None:
    session = build(engines.Troubled(folder=str(tmp_path)))
    (pid,) = processes.builders(tmp_path)
    assert os.getpgid(pid) != os.getpgid(0), "Ctrl-C in a terminal goes to a process group"
    os.kill(pid, signal.SIGINT)
    session.generate([ask(0)])
    assert processes.builders(tmp_path) == [pid]


@linux
def test_memory_stays_with_the_worker(build: Build, engines: Any) -> None:
    def memory() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    build(engines.Hefty(1 << 20)).close()
    before = memory()
    session = build(engines.Hefty(400 << 20))
    session.generate([ask(n) for n in range(20)])
    session.close()
    assert memory() <= before * 1.05


@linux
def test_tree_is_found_by_its_mark(tmp_path: Path, processes: Any) -> None:
    # Not one that reads a pipe of its parent's: it would end with the parent, sooner or later.
    code = "import subprocess, sys; wait = 'import threading; threading.Event().wait(60)'; "
    code += "c = subprocess.Popen([sys.executable, '-c', wait], start_new_session=True); "
    code += "print(c.pid, flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "EVALUTION_WORKER": "test-mark"},
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        process.kill()
        process.wait()
        assert processes.are_running(grandchild)
        kill_tree(process.pid, "test-mark")
    processes.wait_until_gone(grandchild)


SCRIPT = """
from dataclasses import dataclass
from evalution.replicas import Replicas
from evalution_core import GenerationRequest, Model
from evalution_enginekit.mock import Mock

print("loaded")

@dataclass(slots=True)
class Own(Mock):
    pass

engine = {engine}
{guard}
    with Replicas(engine, 1).build(Model("mock")) as session:
        print(session.generate([GenerationRequest("a", max_new_tokens=1)])[0].finish_reason)
"""


@pytest.mark.parametrize(
    ("engine", "guard", "imports"),
    [("Own()", 'if __name__ == "__main__":', 1), ("Mock()", "if True:", 0)],
)
def test_script_needs_a_guard_only_for_classes_of_its_own(
    tmp_path: Path, engine: str, guard: str, imports: int
) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.format(engine=engine, guard=guard))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=True, timeout=WAIT_S
    )
    assert done.stdout.split() == ["loaded", "length"]
    assert done.stderr.count("loaded") == imports, "what a worker prints goes to standard error"
