"""The thread that an engine of SGLang belongs to, and the processes that belong to the engine."""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import os
import threading
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from importlib import import_module
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from evalution_core import EngineRuntimeError
from evalution_sglang.quit_signal import is_alone, quit_told
from evalution_sglang.upstream import Engine

_LOOK_S = 0.5
_GRACE_S = 10.0
_LAST_WORDS_S = 5.0
_DUMP = 1 << 16
_SOCKET = "ipc://"


class EngineHost:
    """Starts an engine, watches its processes, and ends them.

    All on one thread that lives as long as they do: they have the kernel kill them when the thread
    that started them ends. It isn't the main thread, where upstream would set signal handlers.

    Args:
        kind: SGLang's class of engines.
        given: what it is called with.

    Attributes:
        engine: SGLang's engine; its event loop may be run on any thread but the main one.
        described: what it tells of itself, its arguments as it resolved them included.

    Raises:
        Exception: what the engine's constructor raised; nothing of it is left then.
    """

    def __init__(self, kind: type[Engine], given: Mapping[str, Any]):
        self._kind = kind
        self._given = given
        self._ending = threading.Event()
        self._started: Future[tuple[Engine, dict[str, Any]]] = Future()
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="SGLang's host", daemon=True)
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
        with quit_told() as told:
            try:
                engine = self._constructed()
            except BaseException as error:  # noqa: BLE001 - raised where the engine was asked for
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
                self._watch(processes, told)
            _stop_watchdog(engine)
            _kill(processes)
        _close_loop(engine.loop)
        _forget_sockets(engine)

    def _constructed(self) -> Engine:
        earlier = set(multiprocessing.active_children())
        # In two steps, since a constructor that fails leaves a hook behind as well, which kills
        # every process that this one has when it exits.
        engine = self._kind.__new__(self._kind)
        try:
            engine.__init__(**self._given)
        except BaseException:
            _kill(set(multiprocessing.active_children()) - earlier)
            raise
        finally:
            atexit.unregister(engine.shutdown)
        return engine

    def _watch(self, processes: list[BaseProcess], told: int) -> None:
        """Until a process ends, or SGLang says that one failed, or `end` is called."""
        sentinels = [process.sentinel for process in processes]
        while not self._ending.is_set():
            ready = connection.wait([*sentinels, told], timeout=_LOOK_S)
            if told in ready:
                os.read(told, _DUMP)
                # A process that fails tells of it before it ends; one that hangs doesn't end.
                ready = connection.wait(sentinels, timeout=_LAST_WORDS_S)
                if not ready and not is_alone():
                    continue
            elif not ready:
                continue
            self._failure = _failure_of(
                processes[at] for at, one in enumerate(sentinels) if one in ready
            )
            self._ending.wait()


def _failure_of(ended: Iterable[BaseProcess]) -> str:
    for process in ended:
        process.join()
        return (
            f"a process of SGLang ended by itself, exit code {process.exitcode}; its words are on "
            f"standard error"
        )
    return "SGLang told of a failure by SIGQUIT; what it said is on standard error"


def _stop_watchdog(engine: Engine) -> None:
    """Upstream's own, which would take the end of the processes for a failure."""
    watchdog = engine.tokenizer_manager._subprocess_watchdog  # pyright: ignore[reportPrivateUsage]
    if watchdog is not None:
        watchdog.stop()


def _kill(processes: Collection[BaseProcess]) -> None:
    """End processes and all that they started.

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


def _forget_sockets(engine: Engine) -> None:
    """Close this end of the connections, and remove the files that they leave."""
    manager = engine.tokenizer_manager
    for socket in (manager.recv_from_detokenizer, manager.send_to_scheduler, engine.send_to_rpc):
        socket.context.destroy(linger=0)
    names: dict[str, Any] = engine.port_args.__dict__
    for value in names.values():
        if isinstance(value, str) and value.startswith(_SOCKET):
            Path(value.removeprefix(_SOCKET)).unlink(missing_ok=True)
