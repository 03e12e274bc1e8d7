"""vLLM's engine core, in this process or in one of its own: its start, its death, its end."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import connection
from typing import Any, ClassVar

from evalution_core import EngineRuntimeError

_POLL_S = 0.5
_GRACE_S = 10.0


class InprocCore:
    """One engine core of this process.

    Shutting one down destroys the process groups of all (vLLM 0.32 and 0.33). So those that end
    before the last one free weights and cache, and are shut down with it.
    """

    _running: ClassVar[int] = 0
    _ended: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.engine: Any = None
        """vLLM's engine, once it has started."""
        InprocCore._running += 1

    @contextmanager
    def starting(self) -> Generator[None]:
        """Restore random states and torch's functions after the start."""
        torch: Any = import_module("torch")
        numpy: Any = import_module("numpy")
        # vLLM 0.32's CPU worker replaces it with a function that only warns.
        set_num_threads = torch.set_num_threads
        states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_num_threads = set_num_threads
            random.setstate(states[0])
            numpy.random.set_state(states[1])
            torch.set_rng_state(states[2])

    def end(self) -> None:
        """Free what the engine holds, and shut it down once no other one runs."""
        InprocCore._running -= 1
        engine, self.engine = self.engine, None
        if engine is not None:
            InprocCore._ended.append(engine)
        if InprocCore._running > 0:
            if engine is not None:
                engine.model_executor.shutdown()
            return
        ended, InprocCore._ended = InprocCore._ended, []
        for one in ended[:-1]:
            # It would shut down by itself when it is collected, and the groups are gone then.
            one.engine_core._finalizer.detach()
        for one in ended[-1:]:
            one.engine_core.shutdown()


class SubprocessCore:
    """Watches a core's processes, and ends them.

    vLLM 0.32 and 0.33 wait without end for the output of a core that was killed (by the kernel,
    where memory ran out, say): they notice only a core that reports its end. So the error is put
    where the output would come from.
    """

    def __init__(self, engine: Any):
        psutil: Any = import_module("psutil")
        self._engine = engine
        self._cores: list[Any] = list(engine.engine_core.resources.engine_manager.processes)
        found = [psutil.Process(core.pid) for core in self._cores]
        self._processes = [
            *found,
            *(child for core in found for child in core.children(recursive=True)),
        ]
        self._ending = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="vLLM's watcher", daemon=True)
        self._watcher.start()

    def end(self) -> None:
        """Shut the core down, and kill what doesn't end."""
        self._ending.set()
        self._watcher.join()
        self._engine.engine_core.shutdown(timeout=_GRACE_S)
        psutil: Any = import_module("psutil")
        # Upstream neither waits for the processes that it kills nor ends its workers.
        _, left = psutil.wait_procs(self._processes, timeout=_GRACE_S)
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=_GRACE_S)

    def _watch(self) -> None:
        sentinels = [core.sentinel for core in self._cores]
        while not connection.wait(sentinels, timeout=_POLL_S):
            if self._ending.is_set():
                return
        outputs = self._engine.engine_core.outputs_queue
        codes = ", ".join(str(core.exitcode) for core in self._cores)
        while not self._ending.wait(_POLL_S):
            # Generation and scoring may both wait, one after the other.
            if outputs.empty():
                outputs.put(EngineRuntimeError(f"vLLM's engine core ended, exit code {codes}"))
