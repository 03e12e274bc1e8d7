"""Real worker processes: killed, hung, poisoned, orphaned. The engines are in `worker_engines`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from evalution.workers import SupervisedSession, WorkerOptions, build_supervised
from evalution.workers.process_tree import kill_tree
from evalution_core import (
    ConfigurationError,
    EngineRuntimeError,
    GenerationRequest,
    InvalidRequestError,
    LoglikelihoodRequest,
    Model,
    RequestFailure,
    RollingLoglikelihoodRequest,
    SessionClosedError,
    TextDelta,
)

HERE = Path(__file__).parent
MODEL = Model("mock")
WAIT_S = 60
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

Build = Callable[..., SupervisedSession]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of engines; workers take over this process's path, and so can import it too."""
    monkeypatch.syspath_prepend(HERE)
    return import_module("worker_engines")


@pytest.fixture
def build(engines: Any) -> Iterator[Build]:
    built: list[SupervisedSession] = []

    def start(engine: Any, workers: int = 1, **options: Any) -> SupervisedSession:
        session = build_supervised(engine, MODEL, workers=workers, options=WorkerOptions(**options))
        built.append(session)
        return session

    yield start
    for session in built:
        session.close()


def ask(number: int, *, poison: bool = False) -> GenerationRequest:
    return GenerationRequest(f"{number} {'poison' if poison else ''}", max_new_tokens=2)


def answered(session: SupervisedSession, count: int, poison: int) -> dict[int, Any]:
    """All answers of a stream with one poison, which must each come once; the failed ones."""
    stream = session.generate_continuous(
        ((n, ask(n, poison=n == poison)) for n in range(count)), batch_size=4
    )
    found = list(stream)
    assert sorted(key for key, _ in found) == list(range(count))
    return {key: answer.error for key, answer in found if isinstance(answer, RequestFailure)}


def builders(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir()]


def wait_until_gone(*pids: int) -> None:
    """Wait for processes that aren't children of this one."""
    patience = threading.Event()
    for _ in range(WAIT_S * 50):
        if not any(is_running(pid) for pid in pids):
            return
        patience.wait(0.02)
    raise AssertionError(f"still running: {[pid for pid in pids if is_running(pid)]}")


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


# what ends a worker


@linux
def test_ten_kills_cost_no_answer(build: Build, engines: Any, tmp_path: Path) -> None:
    session = build(engines.Troubled(folder=str(tmp_path)), workers=2)
    found: list[tuple[int, Any]] = []
    killed: set[int] = set()
    for pair in session.generate_continuous((n, ask(n)) for n in range(2000)):
        found.append(pair)
        living = [pid for pid in builders(tmp_path) if pid not in killed and is_running(pid)]
        if len(killed) < 10 and len(found) >= 150 * len(killed) and living:
            os.kill(living[0], signal.SIGKILL)
            killed.add(living[0])
    assert len(killed) == 10
    assert sorted(key for key, _ in found) == list(range(2000))
    assert not [answer for _, answer in found if isinstance(answer, RequestFailure)]


@linux
def test_a_forked_process_does_not_hide_the_end(build: Build, engines: Any, tmp_path: Path) -> None:
    engine = engines.Troubled(folder=str(tmp_path), forks=True)
    session = build(engine, heartbeat_timeout=None)
    os.kill(builders(tmp_path)[0], signal.SIGKILL)
    with ThreadPoolExecutor() as pool:
        (output,) = pool.submit(session.generate, [ask(0)]).result(WAIT_S)
    assert output.finish_reason == "length"


@posix
def test_a_crashing_request_is_found_with_its_stack(build: Build, engines: Any) -> None:
    failed = answered(build(engines.Troubled("crash")), 200, poison=77)
    assert failed.keys() == {77}
    error = failed[77]
    assert isinstance(error, EngineRuntimeError)
    assert "was killed by SIGSEGV, twice; it stood in string_at (" in str(error)
    assert "in crash" in str(error.__cause__)
    assert error.in_flight == (77,)


@posix
@pytest.mark.slow
def test_a_hanging_request_is_found_with_its_stack(build: Build, engines: Any) -> None:
    session = build(engines.Troubled("hang", batch_size=2), request_timeout=2.0)
    failed = answered(session, 12, poison=5)
    assert failed.keys() == {5}
    assert "made no progress for 2 s and was killed" in str(failed[5])
    assert "it stood in hang (" in str(failed[5])


@posix
def test_a_request_that_blocks_the_interpreter_is_found(build: Build, engines: Any) -> None:
    session = build(engines.Troubled("hang_with_the_lock"), heartbeat_timeout=2.0)
    (failure,) = dict(session.generate_continuous([(0, ask(0, poison=True))])).values()
    assert isinstance(failure, RequestFailure)
    assert "was silent for 2 s" in str(failure.error)
    assert "it stood in hang_with_the_lock (" in str(failure.error)


def test_a_session_that_fails_is_asked_again(build: Build, engines: Any, tmp_path: Path) -> None:
    session = build(engines.Troubled("fail", folder=str(tmp_path)))
    failed = answered(session, 50, poison=7)
    assert failed.keys() == {7}
    assert "ValueError: planted" in str(failed[7])
    assert "twice, with this request alone" in str(failed[7])
    assert len(builders(tmp_path)) == 2, "one fresh process, for the second opinion"


def test_list_calls_are_divided_and_tell_what_ended_them(build: Build, engines: Any) -> None:
    session = build(engines.Troubled("exit"), workers=2)
    pairs = [LoglikelihoodRequest(f"{n}", "x", metadata={"n": n}) for n in range(9)]
    outputs = session.loglikelihood(pairs)
    assert [output.metadata for output in outputs] == [{"n": n} for n in range(9)]
    pairs[4].continuation = "poison"
    with pytest.raises(EngineRuntimeError, match="exited with code 3, twice") as raised:
        session.loglikelihood(pairs)
    assert raised.value.in_flight == (4,)
    bad = [LoglikelihoodRequest("a", "") if n in (1, 8) else pairs[0] for n in range(9)]
    with pytest.raises(InvalidRequestError, match="2 of 9 requests refused") as refused:
        session.loglikelihood(bad)
    assert refused.value.failures.keys() == {1, 8}


def test_whole_texts_are_a_stream_too(build: Build, engines: Any) -> None:
    session = build(engines.Troubled("exit"))
    texts = ((n, RollingLoglikelihoodRequest("poison" if n == 2 else "a b")) for n in range(5))
    found = dict(session.loglikelihood_rolling_continuous(texts))
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert [key for key, value in found.items() if isinstance(value, RequestFailure)] == [2]


@linux
def test_told_text_is_not_told_again(build: Build, engines: Any, tmp_path: Path) -> None:
    session = build(engines.Troubled(folder=str(tmp_path)))
    request = GenerationRequest("a long one", max_new_tokens=200, ignore_eos=True)
    (expected,) = session.generate([request])
    text, output = "", None
    for _, event in session.stream([(0, request)]):
        if isinstance(event, TextDelta):
            if not text:
                os.kill(builders(tmp_path)[0], signal.SIGKILL)
            text += event.text
        else:
            output = event
    assert output == expected
    assert text == expected.text


def test_a_request_that_can_not_be_sent_is_its_own_failure(build: Build, engines: Any) -> None:
    session = build(engines.Troubled())
    odd = GenerationRequest("a", stop=[lambda: None], metadata={"n": 1})  # pyright: ignore
    found = dict(session.generate_continuous([(0, ask(0)), (1, odd), (2, ask(2))]))
    failure = found[1]
    assert isinstance(failure, RequestFailure)
    assert isinstance(failure.error, InvalidRequestError)
    assert "can't be sent to a worker process" in str(failure.error)
    assert failure.metadata == {"n": 1}
    assert not isinstance(found[2], RequestFailure)


def test_metadata_stays_here_and_may_be_anything(build: Build, engines: Any) -> None:
    session = build(engines.Troubled())
    lock = threading.Lock()
    request = GenerationRequest("a", max_new_tokens=1, metadata={"lock": lock})
    (output,) = session.generate([request])
    ((_, streamed),) = session.generate_continuous([(0, request)])
    assert output.metadata["lock"] is streamed.metadata["lock"] is lock
    assert request.metadata == {"lock": lock}


# building


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("refuse", ConfigurationError, "^planted: no such model$"),
        ("fail", EngineRuntimeError, "^building the session: ValueError: planted: foreign$"),
        ("exit", EngineRuntimeError, "exited with code 3 while it loaded the model"),
    ],
)
def test_a_failed_build_is_told_and_not_tried_again(
    build: Build, engines: Any, tmp_path: Path, how: str, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        build(engines.Unbuildable(how, folder=str(tmp_path)))
    assert len(builders(tmp_path)) == 1


@posix
def test_a_build_has_a_deadline(build: Build, engines: Any) -> None:
    text = r"had not loaded the model after 5 s and was killed .*; it stood in hang \("
    with pytest.raises(EngineRuntimeError, match=text):
        build(engines.Unbuildable("hang"), build_timeout=5.0)


@linux
def test_a_session_whose_workers_can_not_be_built_again_ends(
    build: Build, engines: Any, tmp_path: Path
) -> None:
    session = build(engines.Unbuildable("later", folder=str(tmp_path)), restarts=1, backoff=0.0)
    os.kill(builders(tmp_path)[0], signal.SIGKILL)
    with pytest.raises(EngineRuntimeError, match=r"2 times in a row .*: planted: only once"):
        list(session.generate_continuous((n, ask(n)) for n in range(10)))
    with pytest.raises(EngineRuntimeError, match="2 times in a row"):
        session.generate([ask(0)])
    session.close()
    with pytest.raises(SessionClosedError):
        session.generate([ask(0)])


def test_what_can_not_be_pickled_is_named(build: Build, engines: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"option 'callback' of engine Unpicklable, a "):
        build(engines.Unpicklable(callback=lambda: None))
    model = Model("mock", tokenizer=threading.Lock())
    with pytest.raises(
        ConfigurationError, match="field 'tokenizer' of the model, a lock, can't be"
    ):
        build_supervised(engines.Troubled(), model)


# the end


@linux
def test_closing_ends_all_processes(build: Build, engines: Any, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    session = build(engines.Parental(str(file)))
    pids = [int(pid) for pid in file.read_text().split()]
    assert all(is_running(pid) for pid in pids)
    session.close()
    assert not any(is_running(pid) for pid in pids)


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
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent(tmp_path: Path, sign: signal.Signals) -> None:
    file = tmp_path / "pids"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(HERE), str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        pids = [int(pid) for pid in file.read_text().split()]
        assert all(is_running(pid) for pid in pids)
        program.send_signal(sign)
    wait_until_gone(*pids)


@posix
def test_an_interrupt_is_the_parents_business(build: Build, engines: Any, tmp_path: Path) -> None:
    session = build(engines.Troubled(folder=str(tmp_path)))
    (pid,) = builders(tmp_path)
    assert os.getpgid(pid) != os.getpgid(0), "Ctrl-C in a terminal goes to a process group"
    os.kill(pid, signal.SIGINT)
    session.generate([ask(0)])
    assert builders(tmp_path) == [pid]


@linux
def test_the_memory_stays_with_the_worker(build: Build, engines: Any) -> None:
    def memory() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    build(engines.Hefty(1 << 20)).close()
    before = memory()
    session = build(engines.Hefty(400 << 20))
    session.generate([ask(n) for n in range(20)])
    session.close()
    assert memory() <= before * 1.05


@linux
def test_a_tree_is_found_by_its_mark(tmp_path: Path) -> None:
    code = "import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', 'input()'], "
    code += "stdin=subprocess.PIPE, start_new_session=True); print(c.pid, flush=True); input()"
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
        assert is_running(grandchild)
        kill_tree(process.pid, "test-mark")
    wait_until_gone(grandchild)


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
def test_a_script_needs_a_guard_only_for_classes_of_its_own(
    tmp_path: Path, engine: str, guard: str, imports: int
) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.format(engine=engine, guard=guard))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=True, timeout=WAIT_S
    )
    assert done.stdout.split() == ["loaded", "length"]
    assert done.stderr.count("loaded") == imports, "what a worker prints goes to standard error"
