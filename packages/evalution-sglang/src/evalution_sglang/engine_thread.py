"""The thread that starts an engine of SGLang, watches its processes, and ends them.

SGLang's processes report a failure by SIGQUIT, which would end this process; here it is caught.
"""

from __future__ import annotations

import asyncio
import atexit
import faulthandler
import multiprocessing
import os
import signal
import threading
from collections.abc import Collection, Generator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from evalution_core import EngineRuntimeError
from evalution_sglang.upstream import Engine

_POLL_S = 0.5
_GRACE_S = 10.0
_LAST_WORDS_S = 5.0
_DUMP = 1 << 16
_SOCKET = "ipc://"

_lock = threading.Lock()
_pipes: list[tuple[int, int]] = []
"""The end to read and the end to write of each `catch_sigquit`."""


@contextmanager
def catch_sigquit() -> Generator[int]:
    """Yield a file descriptor that can be read after a SIGQUIT, which then has no other effect.

    Of several that are open the last one catches a signal, which may be meant for another: see
    `is_only_catcher`. Python lets only the main thread set handlers, and upstream, which ends the
    whole process tree, sets its own only there. Any thread may set that of `faulthandler`, whose
    dump is what can be read.
    """
    pipe = os.pipe()
    for end in pipe:
        os.set_blocking(end, False)
    with _lock:
        _pipes.append(pipe)
        _install()
    try:
        yield pipe[0]
    finally:
        with _lock:
            _pipes.remove(pipe)
            _install()
        for end in pipe:
            os.close(end)


def is_only_catcher() -> bool:
    """Return whether each signal is meant for the one `catch_sigquit` of this process."""
    return len(_pipes) == 1


def _install() -> None:
    if _pipes:
        faulthandler.register(signal.SIGQUIT, file=_pipes[-1][1], all_threads=False)
    else:
        faulthandler.unregister(signal.SIGQUIT)


class EngineThread:
    """Starts an engine, watches its processes, and ends them.

    One thread does all this, as long as they live: they have the kernel kill them when the thread
    that started them ends. It isn't the main thread, where upstream would set signal handlers.

    Args:
        kind: SGLang's class of engines.
        arguments: of its constructor.

    Attributes:
        engine: SGLang's engine; its event loop may be run on any thread but the main one.
        described: its own description, with its arguments as it resolved them.

    Raises:
        Exception: any error of the engine's constructor; nothing of the engine is left then.
    """

    def __init__(self, kind: type[Engine], arguments: Mapping[str, Any]):
        self._kind = kind
        self._arguments = arguments
        self._ending = threading.Event()
        self._started: Future[tuple[Engine, dict[str, Any]]] = Future()
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="SGLang's engine", daemon=True)
        self._thread.start()
        try:
            self.engine, self.described = self._started.result()
        except BaseException:
            self._ending.set()
            raise

    def ensure_alive(self) -> None:
        """Raise `EngineRuntimeError` once a process of the engine has ended."""
        if self._failure is not None:
            raise EngineRuntimeError(self._failure)

    @property
    def is_alive(self) -> bool:
        return self._failure is None

    def end(self) -> None:
        """Kill the engine's processes and wait for their end; its event loop may not be running."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        with catch_sigquit() as signals:
            try:
                engine = self._construct()
            except BaseException as error:  # noqa: BLE001 - raised again in the constructor
                self._started.set_exception(error)
                return
            known = set(engine.get_all_child_pids())
            processes = [one for one in multiprocessing.active_children() if one.pid in known]
            try:
                described = engine.get_server_info()
            except BaseException as error:  # noqa: BLE001 - as above
                self._started.set_exception(error)
            else:
                self._started.set_result((engine, described))
                self._watch(processes, signals)
            _stop_watchdog(engine)
            _kill(processes)
        _close_loop(engine.loop)
        _close_sockets(engine)

    def _construct(self) -> Engine:
        earlier = set(multiprocessing.active_children())
        # In two steps, since a constructor that fails leaves a hook behind as well, which kills
        # every process that this one has when it exits.
        engine = self._kind.__new__(self._kind)
        try:
            engine.__init__(**self._arguments)
        except BaseException:
            _kill(set(multiprocessing.active_children()) - earlier)
            raise
        finally:
            atexit.unregister(engine.shutdown)
        return engine

    def _watch(self, processes: list[BaseProcess], signals: int) -> None:
        """Wait until a process ends, SGLang reports a failure, or `end` is called."""
        sentinels = [process.sentinel for process in processes]
        while not self._ending.is_set():
            ready = connection.wait([*sentinels, signals], timeout=_POLL_S)
            if signals in ready:
                os.read(signals, _DUMP)
                # A process that fails reports it before it ends; one that hangs doesn't end.
                ready = connection.wait(sentinels, timeout=_LAST_WORDS_S)
                if not ready and not is_only_catcher():
                    continue
            elif not ready:
                continue
            self._failure = _describe_failure(
                processes[at] for at, one in enumerate(sentinels) if one in ready
            )
            self._ending.wait()


def _describe_failure(ended: Iterable[BaseProcess]) -> str:
    for process in ended:
        process.join()
        return (
            f"a process of SGLang ended by itself, exit code {process.exitcode}; its output is on "
            f"standard error"
        )
    return "SGLang reported a failure by SIGQUIT; its output is on standard error"


def _stop_watchdog(engine: Engine) -> None:
    """Stop upstream's own watchdog, which would take the end of the processes for a failure."""
    watchdog = engine.tokenizer_manager._subprocess_watchdog  # pyright: ignore[reportPrivateUsage]
    if watchdog is not None:
        watchdog.stop()


def _kill(processes: Collection[BaseProcess]) -> None:
    """Kill processes and all that they started.

    Upstream's `shutdown` would kill every other process that this one started as well.
    """
    psutil: Any = import_module("psutil")
    found: list[Any] = []
    for process in processes:
        try:
            parent = psutil.Process(process.pid)
            found += [*parent.children(recursive=True), parent]
        except psutil.NoSuchProcess:
            continue
    for one in found:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(found, timeout=_GRACE_S)
    for process in processes:
        process.join(_GRACE_S)


def _close_loop(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_GRACE_S))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _close_sockets(engine: Engine) -> None:
    """Close this end of the connections, and remove their socket files."""
    manager = engine.tokenizer_manager
    for socket in (manager.recv_from_detokenizer, manager.send_to_scheduler, engine.send_to_rpc):
        socket.context.destroy(linger=0)
    names: dict[str, Any] = engine.port_args.__dict__
    for value in names.values():
        if isinstance(value, str) and value.startswith(_SOCKET):
            Path(value.removeprefix(_SOCKET)).unlink(missing_ok=True)
